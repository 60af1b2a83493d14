# The C side of topic_blocks_cy.py.

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

from tailrace.shard.frame_cy cimport crc32c_extend, tr_load16, tr_load32, tr_load64, tr_store32, tr_store64, tr_topic

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>

    #define TR_KEYS_MAX 5
    #define TR_BLOCK_BITS 1792u

    static inline uint64_t tr_mix(uint64_t h) {
        h ^= h >> 30; h *= 0xBF58476D1CE4E5B9ull;
        h ^= h >> 27; h *= 0x94D049BB133111EBull;
        return h ^ (h >> 31);
    }

    /* The keys of a topic: one for each of its first four prefixes of whole levels, and one for all of it. */
    static inline int tr_topic_keys(const uint8_t *t, size_t n, uint64_t *keys) {
        uint64_t h = 0xCBF29CE484222325ull;
        int count = 0;
        for (size_t i = 0; i < n; i++) {
            if (t[i] == '/' && count < TR_KEYS_MAX - 1) keys[count++] = tr_mix(h);
            h = (h ^ t[i]) * 0x100000001B3ull;
        }
        keys[count++] = tr_mix(h);
        return count;
    }

    static inline uint32_t tr_block_bit(uint64_t key, int i) {
        return (uint32_t)(((key >> (16 * i)) & 0xFFFFu) * TR_BLOCK_BITS >> 16);
    }

    static inline void tr_block_add(uint8_t *bits, const uint8_t *t, size_t n) {
        uint64_t keys[TR_KEYS_MAX];
        int count = tr_topic_keys(t, n, keys);
        for (int k = 0; k < count; k++)
            for (int i = 0; i < 4; i++) {
                uint32_t bit = tr_block_bit(keys[k], i);
                bits[bit >> 3] |= (uint8_t)(1u << (bit & 7));
            }
    }

    /* Fills in the head of a record; returns the next one. */
    static inline uint8_t *tr_block_seal(
        uint8_t *r, uint32_t last_crc, uint64_t seq, uint64_t offset, uint64_t bytes, uint64_t frames, uint64_t sealed
    ) {
        tr_store32(r + 4, last_crc);
        tr_store64(r + 8, seq);
        tr_store64(r + 16, offset);
        tr_store32(r + 24, (uint32_t)bytes);
        tr_store32(r + 28, (uint32_t)frames);
        tr_store32(r, crc32c_extend(0, r + 4, 252) ^ (uint32_t)sealed);
        return r + 256;
    }

    static inline int tr_block_has(const uint8_t *bits, const uint8_t *keys, size_t count) {
        for (size_t k = 0; k < count; k++)
            for (int i = 0; i < 4; i++) {
                uint32_t bit = tr_block_bit(tr_load64(keys + 8 * k), i);
                if (!(bits[bit >> 3] & (1u << (bit & 7)))) return 0;
            }
        return count > 0;
    }
    """
    int tr_topic_keys(const uint8_t *t, size_t n, uint64_t *keys) noexcept nogil
    void tr_block_add(uint8_t *bits, const uint8_t *t, size_t n) noexcept nogil
    uint8_t *tr_block_seal(
        uint8_t *r, uint32_t last_crc, uint64_t seq, uint64_t offset, uint64_t bytes, uint64_t frames, uint64_t sealed
    ) noexcept nogil
    int tr_block_has(const uint8_t *bits, const uint8_t *keys, size_t count) noexcept nogil
