# The C side of frame_cy.py, also for other leaves, in their own .pxd:
# `from tailrace.shard.frame_cy cimport crc32c_extend`.
#
# crc32c_extend() takes and gives the finished checksum (0 for no bytes), so that a long run can be done in pieces.
# The processor's instruction is chosen at the first call: the code for it is compiled by a function attribute, so that
# no flag is needed and one binary runs on every machine of its architecture.

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #ifndef TAILRACE_CRC32C
    #define TAILRACE_CRC32C
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "the compiled leaves are written for little-endian machines; build with TAILRACE_DISABLE_COMPILED=1"
    #endif

    static inline uint16_t tr_load16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return v; }
    static inline uint32_t tr_load32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }
    static inline uint64_t tr_load64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }
    static inline void tr_store16(uint8_t *p, uint16_t v) { memcpy(p, &v, 2); }
    static inline void tr_store32(uint8_t *p, uint32_t v) { memcpy(p, &v, 4); }
    static inline void tr_store64(uint8_t *p, uint64_t v) { memcpy(p, &v, 8); }

    /* Eight tables ("slicing by eight") for machines without the instruction; filled once. */
    static uint32_t tr_crc_table[8][256];

    static void tr_crc_fill(void) {
        for (uint32_t n = 0; n < 256; n++) {
            uint32_t crc = n;
            for (int bit = 0; bit < 8; bit++) crc = (crc & 1) ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
            tr_crc_table[0][n] = crc;
        }
        for (uint32_t n = 0; n < 256; n++)
            for (int k = 1; k < 8; k++)
                tr_crc_table[k][n] = (tr_crc_table[k - 1][n] >> 8) ^ tr_crc_table[0][tr_crc_table[k - 1][n] & 0xFF];
    }

    static uint32_t tr_crc_tables(uint32_t crc, const uint8_t *p, size_t length) {
        crc = ~crc;
        while (length >= 8) {
            uint64_t v = tr_load64(p) ^ crc;
            crc = tr_crc_table[7][v & 0xFF] ^ tr_crc_table[6][(v >> 8) & 0xFF] ^ tr_crc_table[5][(v >> 16) & 0xFF]
                ^ tr_crc_table[4][(v >> 24) & 0xFF] ^ tr_crc_table[3][(v >> 32) & 0xFF]
                ^ tr_crc_table[2][(v >> 40) & 0xFF] ^ tr_crc_table[1][(v >> 48) & 0xFF] ^ tr_crc_table[0][v >> 56];
            p += 8; length -= 8;
        }
        while (length--) crc = (crc >> 8) ^ tr_crc_table[0][(crc ^ *p++) & 0xFF];
        return ~crc;
    }

    #if defined(__x86_64__)
    #define TAILRACE_CRC_NAME "sse4.2"
    #define TAILRACE_CRC_TARGET __attribute__((target("sse4.2")))
    TAILRACE_CRC_TARGET
    static inline uint64_t tr_crc_word(uint64_t c, uint64_t v) { return __builtin_ia32_crc32di(c, v); }
    TAILRACE_CRC_TARGET
    static uint32_t tr_crc_hardware(uint32_t crc, const uint8_t *p, size_t length) {
        uint64_t c = ~crc;
        while (length >= 8) { c = tr_crc_word(c, tr_load64(p)); p += 8; length -= 8; }
        if (length & 4) { c = __builtin_ia32_crc32si((uint32_t)c, tr_load32(p)); p += 4; }
        if (length & 2) { c = __builtin_ia32_crc32hi((uint32_t)c, tr_load16(p)); p += 2; }
        if (length & 1) c = __builtin_ia32_crc32qi((uint32_t)c, *p);
        return ~(uint32_t)c;
    }
    static int tr_crc_has_hardware(void) { return __builtin_cpu_supports("sse4.2") != 0; }
    #elif defined(__aarch64__) && defined(__linux__)
    #define TAILRACE_CRC_NAME "armv8"
    #include <sys/auxv.h>
    #define TAILRACE_CRC_TARGET __attribute__((target("arch=armv8-a+crc")))
    TAILRACE_CRC_TARGET
    static inline uint64_t tr_crc_word(uint64_t c, uint64_t v) {
        uint32_t w = (uint32_t)c;
        __asm__("crc32cx %w0, %w0, %x1" : "+r"(w) : "r"(v));
        return w;
    }
    TAILRACE_CRC_TARGET
    static uint32_t tr_crc_hardware(uint32_t crc, const uint8_t *p, size_t length) {
        uint32_t c = ~crc;
        while (length >= 8) { c = (uint32_t)tr_crc_word(c, tr_load64(p)); p += 8; length -= 8; }
        if (length & 4) { uint32_t v = tr_load32(p); __asm__("crc32cw %w0, %w0, %w1" : "+r"(c) : "r"(v)); p += 4; }
        if (length & 2) { uint32_t v = tr_load16(p); __asm__("crc32ch %w0, %w0, %w1" : "+r"(c) : "r"(v)); p += 2; }
        if (length & 1) { uint32_t v = *p; __asm__("crc32cb %w0, %w0, %w1" : "+r"(c) : "r"(v)); }
        return ~c;
    }
    static int tr_crc_has_hardware(void) { return (getauxval(AT_HWCAP) & (1ul << 7)) != 0; }
    #else
    #define TAILRACE_CRC_NAME "tables"
    #define TAILRACE_CRC_TARGET
    static inline uint64_t tr_crc_word(uint64_t c, uint64_t v) { return c ^ v; /* never called */ }
    static uint32_t tr_crc_hardware(uint32_t crc, const uint8_t *p, size_t length) {
        return tr_crc_tables(crc, p, length);
    }
    static int tr_crc_has_hardware(void) { return 0; }
    #endif

    /* 0: not looked yet, 1: instruction, 2: tables. Two threads may look at once; they find the same. */
    static int tr_crc_choice = 0;

    static int tr_crc_choose(void) {
        tr_crc_fill();
        tr_crc_choice = tr_crc_has_hardware() ? 1 : 2;
        return tr_crc_choice;
    }

    static inline uint32_t crc32c_extend(uint32_t crc, const uint8_t *p, size_t length) {
        int choice = tr_crc_choice ? tr_crc_choice : tr_crc_choose();
        return choice == 1 ? tr_crc_hardware(crc, p, length) : tr_crc_tables(crc, p, length);
    }

    static uint32_t crc32c_by_tables(uint32_t crc, const uint8_t *p, size_t length) {
        if (!tr_crc_choice) tr_crc_choose();
        return tr_crc_tables(crc, p, length);
    }

    /* The checksums of three frames side by side: the instruction takes three cycles, and one can begin in each. */
    TAILRACE_CRC_TARGET
    static void tr_three_hardware(const uint8_t *const at[3], const size_t length[3], uint32_t crc[3]) {
        const uint8_t *a = at[0], *b = at[1], *c = at[2];
        size_t shortest = length[0] < length[1] ? length[0] : length[1], done = 8;
        uint64_t x = 0xFFFFFFFFu, y = x, z = x;
        if (length[2] < shortest) shortest = length[2];
        for (; done + 8 <= shortest; done += 8) {
            x = tr_crc_word(x, tr_load64(a + done));
            y = tr_crc_word(y, tr_load64(b + done));
            z = tr_crc_word(z, tr_load64(c + done));
        }
        crc[0] = tr_crc_hardware(~(uint32_t)x, a + done, length[0] - done);
        crc[1] = tr_crc_hardware(~(uint32_t)y, b + done, length[1] - done);
        crc[2] = tr_crc_hardware(~(uint32_t)z, c + done, length[2] - done);
    }

    /* 3 when the next three frames are whole, of 32 to `longest` bytes, and have their checksums. 0 when one has not,
       or without the instruction: then they are to be looked at one by one. */
    static inline int tr_sound_ahead(const uint8_t *frame, size_t left, uint32_t longest) {
        const uint8_t *at[3];
        size_t length[3];
        if (tr_crc_choice != 1) return 0;
        for (int i = 0; i < 3; i++) {
            if (left < 32) return 0;
            length[i] = tr_load32(frame);
            if (length[i] < 32 || length[i] > longest || length[i] > left) return 0;
            at[i] = frame;
            frame += length[i]; left -= length[i];
        }
        uint32_t crc[3];
        tr_three_hardware(at, length, crc);
        for (int i = 0; i < 3; i++) if (crc[i] != tr_load32(at[i] + 4)) return 0;
        return 3;
    }

    /* The length of the frame at `frame`, at most `longest`, of which `left` bytes are there; 0 if it is not whole. */
    static inline uint32_t tr_whole(const uint8_t *frame, size_t left, uint32_t longest) {
        uint32_t length = left >= 32 ? tr_load32(frame) : 0;
        if (length < 32 || length > longest || length > left || tr_load16(frame + 30) > length - 32) return 0;
        return length;
    }

    /* The number of frames, of at most `longest` bytes, that fill `size` bytes exactly; ~p if there is none at p. */
    static inline ptrdiff_t tr_count_frames(const uint8_t *first, size_t size, uint32_t longest) {
        size_t position = 0;
        ptrdiff_t count = 0;
        for (; position < size; count++) {
            uint32_t length = tr_whole(first + position, size - position, longest);
            if (length == 0) return ~(ptrdiff_t)position;
            position += length;
        }
        return count;
    }

    /* Stores the checksums of up to three frames. */
    static inline void tr_store_crcs(uint8_t *const at[3], const size_t length[3], int count) {
        if (count == 3 && tr_crc_choice == 1) {
            const uint8_t *const frames[3] = {at[0], at[1], at[2]};
            uint32_t crc[3];
            tr_three_hardware(frames, length, crc);
            for (int i = 0; i < 3; i++) tr_store32(at[i] + 4, crc[i]);
        } else {
            for (int i = 0; i < count; i++) tr_store32(at[i] + 4, crc32c_extend(0, at[i] + 8, length[i] - 8));
        }
    }

    /* Stamps the frames from `*at` on in place, `most` of them and none behind one that is not whole, and writes the
       index entry of each, with content offsets counted from `offset`. Returns their number; `*at` is their end. */
    static inline ptrdiff_t tr_stamp_run(
        uint8_t *first, size_t size, uint32_t longest, size_t *at, uint8_t *entry, ptrdiff_t most, uint64_t seq,
        uint64_t timestamp_us, uint32_t epoch, uint64_t offset
    ) {
        size_t position = *at, lengths[3];
        uint8_t *frames[3];
        ptrdiff_t count = 0;
        int held = 0;
        for (; count < most && position < size; count++, seq++, entry += 24) {
            uint8_t *frame = first + position;
            uint32_t length = tr_whole(frame, size - position, longest);
            if (length == 0) break;
            tr_store64(frame + 8, seq);
            tr_store64(frame + 16, timestamp_us);
            tr_store64(frame + 24, epoch | (uint64_t)tr_load32(frame + 28) << 32);
            frames[held] = frame; lengths[held++] = length;
            if (held == 3) { tr_store_crcs(frames, lengths, held); held = 0; }
            tr_store64(entry, timestamp_us);
            tr_store64(entry + 8, offset + position);
            tr_store32(entry + 16, length);
            tr_store32(entry + 20, epoch);
            position += length;
        }
        tr_store_crcs(frames, lengths, held);
        *at = position;
        return count;
    }

    /* The topic in a frame's metadata, which shard/topics.py describes; NULL without one. */
    static inline const uint8_t *tr_topic(const uint8_t *p, size_t size, size_t *topic_bytes) {
        const uint8_t *end = p + size;
        if (size < 4 || p[0] < 0x81 || p[0] > 0x8F) return 0;
        p += 1;
        if (end - p > 3 && p[0] == 0xA1 && p[1] == 'p' && p[2] == 0xC4 && end - p > 4 + p[3]) p += 4 + p[3];
        if (end - p > 3 && p[0] == 0xA1 && p[1] == 'n') {
            ptrdiff_t width = p[2] >= 0xCC && p[2] <= 0xCF ? 1 << (p[2] - 0xCC) : 0;
            if ((width || p[2] < 0x80) && end - p > 3 + width) p += 3 + width;
        }
        if (end - p < 4 || p[0] != 0xA1 || p[1] != 't') return 0;
        if ((p[2] & 0xE0) == 0xA0) { size = p[2] & 0x1F; p += 3; }
        else if (p[2] == 0xD9) { size = p[3]; p += 4; }
        else if (p[2] == 0xDA && end - p > 4) { size = (size_t)p[3] << 8 | p[4]; p += 5; }
        else return 0;
        if (size == 0 || size > 1024 || (ptrdiff_t)size > end - p) return 0;
        *topic_bytes = size;
        return p;
    }

    static const char *crc32c_name(void) {
        return (tr_crc_choice ? tr_crc_choice : tr_crc_choose()) == 1 ? TAILRACE_CRC_NAME : "tables";
    }
    #endif
    """
    uint16_t tr_load16(const uint8_t *p) noexcept nogil
    uint32_t tr_load32(const uint8_t *p) noexcept nogil
    uint64_t tr_load64(const uint8_t *p) noexcept nogil
    void tr_store16(uint8_t *p, uint16_t v) noexcept nogil
    void tr_store32(uint8_t *p, uint32_t v) noexcept nogil
    void tr_store64(uint8_t *p, uint64_t v) noexcept nogil
    Py_ssize_t tr_count_frames(const uint8_t *first, size_t size, uint32_t longest) noexcept nogil
    Py_ssize_t tr_stamp_run(
        uint8_t *first, size_t size, uint32_t longest, size_t *at, uint8_t *entry, Py_ssize_t most, uint64_t seq,
        uint64_t timestamp_us, uint32_t epoch, uint64_t offset
    ) noexcept nogil
    uint32_t crc32c_extend(uint32_t crc, const uint8_t *p, size_t length) noexcept nogil
    int tr_sound_ahead(const uint8_t *frame, size_t left, uint32_t longest) noexcept nogil
    uint32_t crc32c_by_tables(uint32_t crc, const uint8_t *p, size_t length) noexcept nogil
    const uint8_t *tr_topic(const uint8_t *p, size_t size, size_t *topic_bytes) noexcept nogil
    const char *crc32c_name() noexcept nogil
