"""Black-box attacks: they query the model's logits or decisions, never its gradients."""
