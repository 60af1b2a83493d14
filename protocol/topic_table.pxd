# Looks names up in the tables of topic_table.py, for the leaves that cimport this.

from libc.stdint cimport uint8_t, uint32_t

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    static uint32_t tr_zlib_crc(const uint8_t *p, size_t length) {
        static const uint32_t nibbles[16] = {
            0x00000000u, 0x1DB71064u, 0x3B6E20C8u, 0x26D930ACu, 0x76DC4190u, 0x6B6B51F4u, 0x4DB26158u, 0x5005713Cu,
            0xEDB88320u, 0xF00F9344u, 0xD6D6A3E8u, 0xCB61B38Cu, 0x9B64C2B0u, 0x86D3D2D4u, 0xA00AE278u, 0xBDBDF21Cu,
        };
        uint32_t crc = ~0u;
        while (length--) {
            crc ^= *p++;
            crc = (crc >> 4) ^ nibbles[crc & 15];
            crc = (crc >> 4) ^ nibbles[crc & 15];
        }
        return ~crc;
    }

    /* Whether a valid filter matches a name without wildcards. */
    static int tr_covers(const uint8_t *f, const uint8_t *f_end, const uint8_t *n, const uint8_t *n_end) {
        for (;;) {
            if (f < f_end && *f == '#') return 1;
            if (f < f_end && *f == '+') {
                f++;
                while (n < n_end && *n != '/') n++;
            } else {
                while (f < f_end && *f != '/') {
                    if (n >= n_end || *n != *f) return 0;
                    n++; f++;
                }
                if (n < n_end && *n != '/') return 0;
            }
            if (f >= f_end) return n >= n_end;
            f++;
            if (n >= n_end) return f + 1 == f_end && *f == '#';
            n++;
        }
    }

    static inline size_t tr_short(const uint8_t *p) { return p[0] | p[1] << 8; }

    /* Whether streams may be named as level `number`, which *stream is then. */
    static int tr_level(
        const uint8_t *name, size_t length, size_t number, const uint8_t **stream, uint32_t *stream_length
    ) {
        const uint8_t *end = name + length, *level = name;
        while (--number) {
            while (level < end && *level != '/') level++;
            if (level++ >= end) return 0;
        }
        const uint8_t *p = level;
        for (; p < end && *p != '/'; p++)
            if (*p <= 32 || *p > 126 || *p == '|' || *p == '*') return 0;
        *stream = level;
        *stream_length = (uint32_t)(p - level);
        return p > level && p - level <= 200;
    }

    static int tr_own(const uint8_t *name, size_t length) {
        if (length > 200 || name[length - 1] == '/') return 0;
        for (size_t i = 0; i < length; i++)
            if (name[i] <= 32 || name[i] > 126 || name[i] == '|' || name[i] == '*') return 0;
        return 1;
    }

    /* 1: a topic in *stream; 0: a stream of its own; -1: the table does not tell; -2: as 0 if the name is valid. */
    static int tr_place(
        const uint8_t *table, const uint8_t *name, size_t length, const uint8_t **stream, uint32_t *stream_length
    ) {
        for (size_t i = 0; i < length; i++)
            if (name[i] == '$' || name[i] == '+' || name[i] == '#') return -1;
        if (length >= 9 && memcmp(name, "reply-to/", 9) == 0) return 0;
        size_t rules = tr_short(table);
        const uint8_t *rule = table + 2;
        for (; rules; rules--) {
            const uint8_t *filter = rule + 6, *slots = filter + tr_short(rule);
            size_t streams = tr_short(rule + 2), slot = tr_short(rule + 4);
            if (tr_covers(filter, slots, name, name + length)) {
                if (streams) {
                    const uint8_t *found = slots + (streams > 1 ? tr_zlib_crc(name, length) % streams : 0) * slot;
                    *stream = found + 1;
                    *stream_length = found[0];
                } else if (!slot) {
                    *stream = name;
                    *stream_length = (uint32_t)length;
                    return tr_own(name, length) ? 0 : -2;
                } else if (!tr_level(name, length, slot, stream, stream_length)) {
                    return -1;
                }
                return length != *stream_length || memcmp(name, *stream, length) != 0;
            }
            rule = slots + streams * slot;
        }
        return 0;
    }
    """
    int tr_place(
        const uint8_t *table, const uint8_t *name, size_t length, const uint8_t **stream, uint32_t *stream_length
    ) noexcept nogil
