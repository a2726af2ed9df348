"""Small architectures with random weights, as people write them: vision, attention, recurrence, leaky slopes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from studies.bounds.wide_nets import resnet18
from torch import Tensor, nn
from torch.nn import functional as f


class Block(nn.Module):
    """A pre-norm encoder block (Vaswani et al., 2017; Xiong et al., 2020), its attention written with matmul."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.first, self.second = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.size).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm1(x)
        query, key, value = self.split(self.query(z)), self.split(self.key(z)), self.split(self.value(z))
        scores = torch.matmul(query, key.transpose(2, 3)) / self.size**0.5
        mixed = torch.matmul(torch.softmax(scores, -1), value).transpose(1, 2).flatten(2)
        x = x + self.output(mixed)
        return x + self.second(torch.relu(self.first(self.norm2(x))))


class Transformer(nn.Module):
    """Tokens of eight features through encoder blocks, and their mean through a linear layer."""

    def __init__(self, tokens: int, blocks: int) -> None:
        super().__init__()
        self.embedding, self.position = nn.Linear(8, 16), nn.Parameter(0.1 * torch.randn(tokens, 16))
        self.blocks, self.head = nn.Sequential(*(Block(16, 2) for _ in range(blocks))), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(x) + self.position).mean(1))


class MaskedEncoder(nn.Module):
    """PyTorch's own encoder layer with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Linear(8, 16), nn.Linear(16, 5)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, norm_first=True, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.layer(self.embedding(x), mask).mean(1))


class Recurrent(nn.Module):
    """The last output of a recurrent layer through a linear layer."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.head = kind(8, 16, batch_first=True), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


class UnrolledLSTM(nn.Module):
    """A cell applied step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.head = nn.Linear(24, 64), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(x.shape[0], 16)
        for step in range(x.shape[1]):
            z = self.gates(torch.cat([x[:, step], h], 1))
            forget, write, read = (torch.sigmoid(z[:, 16 * i : 16 * (i + 1)]) for i in range(3))
            c = forget * c + write * torch.tanh(z[:, 48:])
            h = read * torch.tanh(c)
        return self.head(h)


class Mixer(nn.Module):
    """MLP-Mixer (Tolstikhin et al., 2021) of 4 x 4 patches, with or without layer norm; GELU in its tanh form."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.norm1, self.norm2 = (nn.LayerNorm(16) if norm else nn.Identity() for _ in range(2))
        self.tokens = nn.Sequential(nn.Linear(16, 32), nn.GELU("tanh"), nn.Linear(32, 16))
        self.channels = nn.Sequential(nn.Linear(16, 32), nn.GELU("tanh"), nn.Linear(32, 16))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        z = self.patches(x).flatten(2).transpose(1, 2)
        z = z + self.tokens(self.norm1(z).transpose(1, 2)).transpose(1, 2)
        z = z + self.channels(self.norm2(z))
        return self.head(z.mean(1))


class Dense(nn.Module):
    """DenseNet's block (Huang et al., 2017): each layer sees all before it."""

    def __init__(self, inputs: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(inputs + i * growth),
                nn.ReLU(),
                nn.Conv2d(inputs + i * growth, growth, 3, padding=1, bias=False),
            )
            for i in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def densenet() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1), Dense(16, 8, 3)]
    layers += [
        nn.BatchNorm2d(40),
        nn.ReLU(),
        nn.Conv2d(40, 20, 1),
        nn.AvgPool2d(2),
        Dense(20, 8, 3),
        nn.BatchNorm2d(44),
    ]
    return nn.Sequential(*layers, nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(44 * 16, 10))


class UNet(nn.Module):
    """Two levels with skips (Ronneberger et al., 2015), then classified; upsampled or by transposed convolutions."""

    def __init__(self, upsample: bool) -> None:
        super().__init__()
        self.up2 = nn.Upsample(scale_factor=2, mode="nearest") if upsample else nn.ConvTranspose2d(16, 16, 2, 2)
        self.down1, self.down2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, 2, 1)
        self.bottom, self.up1 = nn.Conv2d(16, 32, 3, 2, 1), nn.ConvTranspose2d(32, 16, 2, 2)
        self.merge1, self.merge2 = nn.Conv2d(32, 16, 3, padding=1), nn.Conv2d(24, 8, 3, padding=1)
        self.head = nn.Linear(8 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.relu(self.down1(x))
        b = torch.relu(self.down2(a))
        z = self.up1(torch.relu(self.bottom(b)))
        z = torch.relu(self.merge1(torch.cat([z, b], 1)))
        z = torch.relu(self.merge2(torch.cat([self.up2(z), a], 1)))
        return self.head(f.avg_pool2d(z, 4).flatten(1))


class Inverted(nn.Module):
    """MobileNetV2's inverted residual (Sandler et al., 2018)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = 4 * inputs
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6()),
            *(nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.ReLU6()),
            *(nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


def mobilenet() -> nn.Sequential:
    first = [nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6()]
    blocks = [Inverted(8, 8, 1), Inverted(8, 16, 2), Inverted(16, 16, 1)]
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


class ChannelNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """ConvNeXt's block (Liu et al., 2022) with layer scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        z = self.scale * self.second(f.gelu(self.first(z)))
        return x + z.permute(0, 3, 1, 2)


def convnext() -> nn.Sequential:
    layers = [nn.Conv2d(3, 8, 4, 4), ChannelNorm(8), ConvNeXtBlock(8), ConvNeXtBlock(8)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 10))


def cnn(activation: Callable[[int], nn.Module]) -> nn.Sequential:
    layers = [nn.Conv2d(3, 8, 4, 2, 1), activation(8), nn.Conv2d(8, 16, 4, 2, 1), activation(16), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(256, 64), activation(1), nn.Linear(64, 10))


def vgg11_bn(width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    inputs = 3
    for outputs in (1, 0, 2, 0, 4, 4, 0, 8, 8, 0, 8, 8, 0):
        if outputs:
            layers += [nn.Conv2d(inputs, width * outputs, 3, padding=1), nn.BatchNorm2d(width * outputs), nn.ReLU()]
            inputs = width * outputs
        else:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 10))


class Logits(nn.Module):
    """A Hugging Face classifier, whose output is an object."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x).logits
        return logits


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=16,
        patch_size=8,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=10,
    )
    return Logits(ViTForImageClassification(config))


def hugging_face_resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=10)
    return Logits(ResNetForImageClassification(config))


@dataclass(frozen=True)
class Architecture:
    """A constructor, the shape of an example, and a radius at which the bounds still tell networks apart."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    epsilon: float


ARCHITECTURES = {
    "transformer, 4 tokens": Architecture(lambda: Transformer(4, 1), (4, 8), 0.01),
    "transformer, 16 tokens": Architecture(lambda: Transformer(16, 1), (16, 8), 0.01),
    "transformer, 2 blocks, 4 tokens": Architecture(lambda: Transformer(4, 2), (4, 8), 0.001),
    "transformer, 2 blocks, 16 tokens": Architecture(lambda: Transformer(16, 2), (16, 8), 0.001),
    "nn.TransformerEncoderLayer, causal": Architecture(MaskedEncoder, (6, 8), 0.01),
    "Hugging Face ViT": Architecture(vit, (3, 16, 16), 0.001),
    "LSTM by hand, 6 steps": Architecture(UnrolledLSTM, (6, 8), 0.01),
    "nn.LSTM, 6 steps": Architecture(lambda: Recurrent(nn.LSTM), (6, 8), 0.01),
    "nn.GRU, 6 steps": Architecture(lambda: Recurrent(nn.GRU), (6, 8), 0.01),
    "GELU mixer": Architecture(lambda: Mixer(norm=False), (3, 16, 16), 0.01),
    "GELU mixer, layer norm": Architecture(lambda: Mixer(norm=True), (3, 16, 16), 0.001),
    "ConvNeXt": Architecture(convnext, (3, 16, 16), 0.001),
    "DenseNet": Architecture(densenet, (3, 16, 16), 0.001),
    "U-Net": Architecture(lambda: UNet(upsample=True), (3, 16, 16), 0.01),
    "U-Net, transposed convolutions": Architecture(lambda: UNet(upsample=False), (3, 16, 16), 0.01),
    "MobileNetV2": Architecture(mobilenet, (3, 16, 16), 0.001),
    "ResNet-18 of width 8": Architecture(lambda: resnet18(8), (3, 32, 32), 0.001),
    "VGG-11 with batch norm": Architecture(lambda: vgg11_bn(8), (3, 32, 32), 0.001),
    "Hugging Face ResNet": Architecture(hugging_face_resnet, (3, 32, 32), 0.001),
    "CNN, leaky slope -0.2": Architecture(lambda: cnn(lambda _: nn.LeakyReLU(-0.2)), (3, 16, 16), 0.01),
    "CNN, PReLU": Architecture(lambda: cnn(nn.PReLU), (3, 16, 16), 0.01),
}


def architecture(name: str, batch: int) -> tuple[nn.Module, Tensor]:
    """A net in evaluation mode, without gradients and with random running statistics, and inputs [batch, ...]."""
    torch.manual_seed(0)
    net = ARCHITECTURES[name].make().eval().requires_grad_(False)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 2)
    return net, torch.rand(batch, *ARCHITECTURES[name].shape)
