#include "bounds/cpu/batch_last_conv.h"

#include <algorithm>
#include <vector>

#include "bounds/cpu/batch_last_conv_kernels.h"

namespace pyrobust::cpu {
namespace {

// Number of examples whose planes stay in the second-level cache during the loop over all output planes.
constexpr int64_t kLaneChunk = 144;
// Number of input planes of one task of the weight gradient.
constexpr int64_t kInputs = 4;
// Number of elements of a packed row.
constexpr int64_t kPacked = 8192;

// Splits the planes into blocks of 8, 4, 3, 2 or 1, at most `largest`.
struct Block {
  int64_t first, size;
};
std::vector<Block> blocks_of(int64_t planes, int64_t largest) {
  std::vector<Block> blocks;
  for (int64_t first = 0; first < planes;) {
    int64_t size = std::min(largest, planes - first);
    if (size > 4 && size < 8) size = 4;
    blocks.push_back({first, size});
    first += size;
  }
  return blocks;
}

// The elements of the kernel that an output uses along one axis, and the inputs that they multiply.
struct Meeting {
  int64_t kernel, input;
};
std::vector<std::vector<Meeting>> meetings(int axis, bool transposed, const BatchLastConvSizes& sizes) {
  const int64_t x = axis == 0 ? sizes.height : sizes.width, y = axis == 0 ? sizes.y_height : sizes.y_width;
  std::vector<std::vector<Meeting>> of_output(static_cast<size_t>(transposed ? x : y));
  for (int64_t j = 0; j < y; ++j)
    for (int64_t k = 0; k < sizes.kernel[axis]; ++k) {
      const int64_t i = j * sizes.stride[axis] + k * sizes.dilation[axis] - sizes.padding[axis];
      if (i < 0 || i >= x) continue;
      if (transposed)
        of_output[static_cast<size_t>(i)].push_back({k, j});
      else
        of_output[static_cast<size_t>(j)].push_back({k, i});
    }
  return of_output;
}

// The convolution or its transpose, from planes to planes.
template <class T>
void gather(const T* in, const T* weight, const T* bias, const T* scale, T* out, bool transposed,
            const BatchLastConvSizes& sizes, const ParallelFor& parallel_for) {
  const BatchLastConvKernels<T>& kernels = batch_last_conv_kernels<T>();
  const int64_t sources = transposed ? sizes.outputs : sizes.inputs,
                targets = transposed ? sizes.inputs : sizes.outputs;
  const int64_t in_width = transposed ? sizes.y_width : sizes.width,
                in_height = transposed ? sizes.y_height : sizes.height;
  const int64_t out_width = transposed ? sizes.width : sizes.y_width,
                out_height = transposed ? sizes.height : sizes.y_height;
  const int64_t lanes = sizes.lanes, area = sizes.kernel[0] * sizes.kernel[1];
  const int64_t in_plane = in_height * in_width * lanes, out_plane = out_height * out_width * lanes;
  const auto blocks = blocks_of(targets, kernels.block);
  const auto rows = meetings(0, transposed, sizes), columns = meetings(1, transposed, sizes);

  // the weights in the order of the inner loop
  std::vector<T> packed(static_cast<size_t>(sizes.groups * targets * sources * area));
  T* next = packed.data();
  for (int64_t g = 0; g < sizes.groups; ++g)
    for (const Block& block : blocks)
      for (int64_t e = 0; e < area; ++e)
        for (int64_t k = 0; k < sources; ++k)
          for (int64_t j = block.first; j < block.first + block.size; ++j) {
            const int64_t o = transposed ? k : j, c = transposed ? j : k;
            *next++ = weight[((g * sizes.outputs + o) * sizes.inputs + c) * area + e];
          }

  parallel_for(0, out_height, 1, [&](int64_t begin, int64_t end) {
    std::vector<KernelElement> elements(static_cast<size_t>(area));
    for (int64_t row = begin; row < end; ++row)
      for (int64_t lane = 0; lane < lanes; lane += kLaneChunk)
        for (int64_t column = 0; column < out_width; ++column) {
          int64_t count = 0;
          for (const Meeting& y : rows[static_cast<size_t>(row)])
            for (const Meeting& x : columns[static_cast<size_t>(column)])
              elements[static_cast<size_t>(count++)] = {(y.kernel * sizes.kernel[1] + x.kernel) * sources,
                                                        (y.input * in_width + x.input) * lanes};
          for (int64_t g = 0; g < sizes.groups; ++g)
            for (const Block& block : blocks) {
              const int64_t plane = g * targets + block.first;
              const ConvPlace<T> at = {in + g * sources * in_plane + lane,
                                       packed.data() + plane * sources * area,
                                       bias == nullptr ? nullptr : bias + plane,
                                       scale == nullptr ? nullptr : scale + lane,
                                       out + plane * out_plane + (row * out_width + column) * lanes + lane,
                                       sources,
                                       in_plane,
                                       out_plane,
                                       std::min(kLaneChunk, lanes - lane)};
              kernels.place(block.size, at, elements.data(), count);
            }
        }
  });
}

// Neighbouring places in a row of y that use the same kernel columns: kernel to kernel + wide - 1.
struct Run {
  int64_t kernel, wide, begin, end;
};
std::vector<Run> runs_of(int64_t columns, const BatchLastConvSizes& sizes) {
  // pieces of nearly equal size
  const int64_t kernel = sizes.kernel[1], pieces = (kernel + columns - 1) / columns,
                size = (kernel + pieces - 1) / pieces;
  std::vector<Run> runs;
  for (int64_t first = 0; first < kernel; first += size) {
    Run run = {0, 0, 0, 0};
    for (int64_t place = 0; place < sizes.y_width; ++place) {
      int64_t begin = std::min(kernel, first + size), end = first;
      for (int64_t k = first; k < std::min(kernel, first + size); ++k) {
        const int64_t x = place * sizes.stride[1] + k * sizes.dilation[1] - sizes.padding[1];
        if (x >= 0 && x < sizes.width) begin = std::min(begin, k), end = k + 1;
      }
      if (run.end == place && run.wide > 0 && run.kernel == begin && run.wide == end - begin) {
        ++run.end;
        continue;
      }
      if (run.wide > 0) runs.push_back(run);
      run = {begin, end - begin, place, place + 1};
    }
    if (run.wide > 0) runs.push_back(run);
  }
  return runs;
}

// Packs `count` planes of a row for a range of examples as [width, vectors, block, kConvLanes]. The last vector ends at
// the last example, with zeros where it overlaps the vector before; a single partial vector is padded with zeros.
template <class T>
void pack(const T* y, int64_t plane, int64_t lanes, int64_t width, int64_t block, int64_t count, T* packed) {
  constexpr int64_t n = kConvLanes<T>;
  const int64_t vectors = (count + n - 1) / n, rest = count - (vectors - 1) * n;
  const bool partial = lanes < n;
  for (int64_t place = 0; place < width; ++place)
    for (int64_t v = 0; v < vectors; ++v)
      for (int64_t j = 0; j < block; ++j, packed += n) {
        const T* const from = y + j * plane + place * lanes + v * n;
        if (v + 1 < vectors || rest == n) {
          std::copy_n(from, n, packed);
        } else {
          std::fill_n(packed, n, T(0));
          std::copy_n(from, rest, partial ? packed : packed + n - rest);
        }
      }
}

// Sums over the SIMD lanes, overwriting them.
template <class T>
T lane_sum(T* lanes) {
  for (int64_t half = kConvLanes<T> / 2; half > 0; half /= 2)
    for (int64_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

}  // namespace

template <class T>
void batch_last_conv(const T* x, const T* weight, const T* bias, const T* scale, T* y, const BatchLastConvSizes& sizes,
                     const ParallelFor& parallel_for) {
  gather(x, weight, bias, scale, y, false, sizes, parallel_for);
}

template <class T>
void batch_last_conv_transposed(const T* y, const T* weight, T* x, const BatchLastConvSizes& sizes,
                                const ParallelFor& parallel_for) {
  gather<T>(y, weight, nullptr, nullptr, x, true, sizes, parallel_for);
}

template <class T>
void batch_last_conv_weight(const T* x, const T* y, T* weight, const BatchLastConvSizes& sizes,
                            const ParallelFor& parallel_for) {
  const BatchLastConvKernels<T>& kernels = batch_last_conv_kernels<T>();
  const int64_t lanes = sizes.lanes, area = sizes.kernel[0] * sizes.kernel[1];
  constexpr int64_t n = kConvLanes<T>;
  const int64_t x_plane = sizes.height * sizes.width * lanes, y_plane = sizes.y_height * sizes.y_width * lanes;
  const auto blocks = blocks_of(sizes.outputs, kernels.block);
  const auto runs = runs_of(kernels.columns, sizes);
  const int64_t parts = (sizes.inputs + kInputs - 1) / kInputs;
  // so many vectors at a time that a packed row stays in the first-level cache
  const int64_t most = std::max<int64_t>(1, (lanes + n - 1) / n);
  const int64_t chunk = n * std::clamp<int64_t>(kPacked / (sizes.y_width * kernels.block * n), 1, most);

  // A task is a block of planes of y with a range of planes of x: no two tasks add to one weight.
  const auto task = [&](int64_t group, const Block& block, int64_t first, int64_t last, T* sums, T* packed) {
    const int64_t kernel = area * n, plane = (last - first) * kernel;
    std::fill(sums, sums + block.size * plane, T(0));
    for (int64_t lane = 0; lane < lanes; lane += chunk) {
      const int64_t count = std::min(chunk, lanes - lane), vectors = (count + n - 1) / n;
      for (int64_t row = 0; row < sizes.y_height; ++row) {
        const int64_t y_at = (group * sizes.outputs + block.first) * y_plane + row * sizes.y_width * lanes + lane;
        pack(y + y_at, y_plane, lanes, sizes.y_width, block.size, count, packed);
        for (int64_t c = first; c < last; ++c)
          for (int64_t ky = 0; ky < sizes.kernel[0]; ++ky) {
            const int64_t x_row = row * sizes.stride[0] + ky * sizes.dilation[0] - sizes.padding[0];
            if (x_row < 0 || x_row >= sizes.height) continue;
            const T* const x_at = x + (group * sizes.inputs + c) * x_plane + x_row * sizes.width * lanes + lane;
            for (const Run& run : runs) {
              const int64_t column = run.begin * sizes.stride[1] + run.kernel * sizes.dilation[1] - sizes.padding[1];
              kernels.strip(
                  block.size, run.wide,
                  {packed + run.begin * vectors * block.size * n, x_at + column * lanes, sizes.stride[1] * lanes,
                   sizes.dilation[1] * lanes, run.end - run.begin, vectors, count - n, lanes < n ? lanes : 0,
                   sums + (c - first) * kernel + (ky * sizes.kernel[1] + run.kernel) * n, plane});
            }
          }
      }
    }
    for (int64_t j = 0; j < block.size; ++j)
      for (int64_t c = first; c < last; ++c)
        for (int64_t e = 0; e < area; ++e) {
          weight[((group * sizes.outputs + block.first + j) * sizes.inputs + c) * area + e] =
              lane_sum(sums + j * plane + (c - first) * kernel + e * n);
        }
  };
  const auto per_group = static_cast<int64_t>(blocks.size()) * parts;
  parallel_for(0, sizes.groups * per_group, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> sums(static_cast<size_t>(kernels.block * kInputs * area * n));
    std::vector<T> packed(static_cast<size_t>(sizes.y_width * chunk * kernels.block));
    for (int64_t t = begin; t < end; ++t) {
      const int64_t part = t % parts;
      task(t / per_group, blocks[static_cast<size_t>(t % per_group / parts)], part * kInputs,
           std::min(sizes.inputs, (part + 1) * kInputs), sums.data(), packed.data());
    }
  });
}

#define PYROBUST_CONV_LANES(T)                                                                                        \
  template void batch_last_conv<T>(const T*, const T*, const T*, const T*, T*, const BatchLastConvSizes&,             \
                                   const ParallelFor&);                                                               \
  template void batch_last_conv_transposed<T>(const T*, const T*, T*, const BatchLastConvSizes&, const ParallelFor&); \
  template void batch_last_conv_weight<T>(const T*, const T*, T*, const BatchLastConvSizes&, const ParallelFor&);
PYROBUST_CONV_LANES(float)
PYROBUST_CONV_LANES(double)
#undef PYROBUST_CONV_LANES

}  // namespace pyrobust::cpu
