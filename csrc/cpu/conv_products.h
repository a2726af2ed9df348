// The products of a convolution's backward step, listed once for all tiles that share them.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/bound_network.h"
#include "cpu/crown_leaves.h"
#include "cpu/tile_window.h"

namespace pyrobust::cpu {

class ConvProducts {
 public:
  // Lists the products from a window of outputs, of which those of `alive` (all where null) can differ from zero, to a
  // window of inputs. Where what alive points to stays as it is, the last list is kept if it fits.
  template <class T>
  void list(const Layer<T>& layer, const Window& outputs, const Window& inputs, const uint8_t* alive, bool stays) {
    if (stays && listed_ && alive_ == alive && outputs_ == outputs && inputs_ == inputs) return;
    listed_ = true, alive_ = alive, outputs_ = outputs, inputs_ = inputs;
    const ConvSizes& s = layer.conv;
    const int64_t channels = layer.shape.channels / s.groups;
    list_taps(layer, channels);
    reach(inputs.y0, inputs.y1, outputs.y0, outputs.y1, s.kernel_h, s.stride_h, s.pad_h, s.dilation_h, rows_,
          row_begin_);
    reach(inputs.x0, inputs.x1, outputs.x0, outputs.x1, s.kernel_w, s.stride_w, s.pad_w, s.dilation_w, columns_,
          column_begin_);
    segments_.clear(), begin_.clear();
    for (int64_t y = 0; y < inputs.height(); ++y)
      for (int64_t x = 0; x < inputs.width(); ++x)
        for (int64_t g = 0; g < s.groups; ++g) {
          begin_.push_back(segments_.size());
          for (size_t r = row_begin_[static_cast<size_t>(y)]; r < row_begin_[static_cast<size_t>(y) + 1]; ++r)
            for (size_t c = column_begin_[static_cast<size_t>(x)]; c < column_begin_[static_cast<size_t>(x) + 1]; ++c) {
              const Reach &row = rows_[r], &column = columns_[c];
              const auto list = static_cast<size_t>((row.place * outputs.width() + column.place) * s.groups + g);
              const size_t first = taps_begin_[list], length = taps_begin_[list + 1] - first;
              if (length > 0)
                segments_.push_back({taps_.data() + first, static_cast<int64_t>(length), 0,
                                     (row.kernel * s.kernel_w + column.kernel) * channels});
            }
        }
    begin_.push_back(segments_.size());
  }

  // Those of list number i: lists are ordered by place of the inputs' window, then group.
  const Segment* segments(int64_t i) const { return segments_.data() + begin_[static_cast<size_t>(i)]; }
  int64_t count(int64_t i) const {
    return static_cast<int64_t>(begin_[static_cast<size_t>(i) + 1] - begin_[static_cast<size_t>(i)]);
  }

 private:
  // Along one axis: an output that an input takes part in, and by which place of the kernel.
  struct Reach {
    int64_t kernel, place;  // the place counts from the window's first
  };
  static void reach(int64_t in_begin, int64_t in_end, int64_t out_begin, int64_t out_end, int64_t kernel,
                    int64_t stride, int64_t pad, int64_t dilation, std::vector<Reach>& found,
                    std::vector<size_t>& begin) {
    found.clear(), begin.clear();
    for (int64_t at = in_begin; at < in_end; ++at) {
      begin.push_back(found.size());
      for (int64_t k = 0; k < kernel; ++k) {
        const int64_t from = at + pad - k * dilation, place = from / stride;
        if (from >= 0 && from % stride == 0 && place >= out_begin && place < out_end)
          found.push_back({k, place - out_begin});
      }
    }
    begin.push_back(found.size());
  }

  // For every place of the outputs' window and every group, the channels that are alive.
  template <class T>
  void list_taps(const Layer<T>& layer, int64_t channels) {
    const Window& w = outputs_;
    const int64_t plane = w.height() * w.width();
    taps_.clear(), taps_begin_.clear();
    for (int64_t y = 0; y < w.height(); ++y)
      for (int64_t x = 0; x < w.width(); ++x)
        for (int64_t g = 0; g < layer.conv.groups; ++g) {
          taps_begin_.push_back(taps_.size());
          for (int64_t c = 0; c < channels; ++c) {
            const int64_t channel = g * channels + c;
            const int64_t k = channel * layer.shape.plane() + (w.y0 + y) * layer.shape.width + w.x0 + x;
            if (alive_ == nullptr || alive_[k] != 0)
              taps_.push_back(
                  {static_cast<int32_t>((channel * plane + y * w.width() + x) * kLanes<T>), static_cast<int32_t>(c)});
          }
        }
    taps_begin_.push_back(taps_.size());
  }

  bool listed_ = false;
  const uint8_t* alive_ = nullptr;
  Window outputs_, inputs_;
  std::vector<Tap> taps_;
  std::vector<Segment> segments_;
  std::vector<size_t> taps_begin_, begin_, row_begin_, column_begin_;
  std::vector<Reach> rows_, columns_;
};

}  // namespace pyrobust::cpu
