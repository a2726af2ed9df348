// core/grid_noise.h on vectors; compiled once for each SIMD level, after cpu/philox_lanes.inl.

// A draw in three passes over a tile that stays in the first-level cache. The entries of the guide are fetched by plain
// loads: on most machines a gather is no faster, on many slower.

// The cell of the guide that each word falls into, and, in the word's place, its place on the guide's scale with the sign
// bit.
PYROBUST_TARGET inline void find_cells(int entry_bits, float* words, float* cells, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const I w = load(words + i);
    const I flip = shift_right_signed<31>(w);
    const I odd = bit_or(bit_xor(w, flip), splat(1u));
    const I place = sub(as_words(to_float(odd)), splat(0x3f800000u));
    store(cells + i, shift_right_by(place, entry_bits));
    store(words + i, bit_or(place, shift_left<31>(flip)));
  }
}

PYROBUST_TARGET inline void look_up(const uint32_t* guide, uint32_t* cells, int64_t n) {
#pragma GCC unroll 8
  for (int64_t i = 0; i < n; ++i) cells[i] = guide[cells[i]];
}

// |J| of one place and entry a lane, its sign applied; `open` collects the lanes that the guide leaves open, `most` the
// largest |J|.
PYROBUST_TARGET inline I integers(int entry_bits, I mask, I signed_place, I entry, Mask& open, I& most) {
  const I flip = shift_right_signed<31>(signed_place);
  const I inside = bit_and(signed_place, mask), at = bit_and(entry, mask);
  const I above = add_where_below(shift_right_by(entry, entry_bits), inside, at);
  open = either(open, equal(inside, at));
  most = max_signed(most, above);
  return sub(flip, bit_xor(above, flip));  // above where the sign bit is set, else -above
}

PYROBUST_TARGET bool draw(const GridTable& table, NoiseKey key, uint32_t image, uint32_t sample, uint32_t block,
                          int64_t blocks, int32_t* j) {
  alignas(64) uint32_t entries[kTile + 4 * kLeafBlocks];
  const RoundKeys keys = round_keys(key.seed);
  float* words = reinterpret_cast<float*>(j);  // as places for vectors only
  float* cells = reinterpret_cast<float*>(entries);
  const int64_t n = (blocks + kLeafBlocks - 1) / kLeafBlocks * kLeafBlocks * 4;
  for (int64_t b = 0; b < blocks; b += kLeafBlocks)
    store_words(keys, key.domain, image, sample, block + static_cast<uint32_t>(b), words + 4 * b);
  find_cells(table.entry_bits, words, cells, n);
  look_up(table.guide, entries, n);
  const I mask = splat((1u << table.entry_bits) - 1u);
  I most = splat(0u);
  bool tail = false;
  for (int64_t b = 0; b < blocks; b += kLanes) {
    float *group = words + 4 * b, *entry = cells + 4 * b;
    Mask open = equal(splat(0u), splat(1u));
    I found[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      found[i] = integers(table.entry_bits, mask, load(group + i * kLanes), load(entry + i * kLanes), open, most);
    store_blocks(group, as_floats(found[0]), as_floats(found[1]), as_floats(found[2]), as_floats(found[3]));
    if (any(open)) {
      for (int64_t i = b; i < b + kLanes; ++i) {
        grid_noise4(table, key, image, sample, block + static_cast<uint32_t>(i), j + 4 * i);
        for (int64_t e = 4 * i; e < 4 * i + 4; ++e) tail |= j[e] >= table.count || -j[e] >= table.count;
      }
    }
  }
  return tail || any_at_least(most, table.count);
}
