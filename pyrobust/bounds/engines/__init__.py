"""The engines that compute bounds, and the choice between them."""
