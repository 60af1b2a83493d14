# The C side of text_cy.py: numbers as text, and what a walk over frames finds.

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from tailrace.shard.frame_cy cimport crc32c_extend, tr_load16, tr_load32, tr_load64, tr_topic

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    static inline int tr_digit_count(uint64_t value) {
        int count = 1;
        while (value >= 10000) { value /= 10000; count += 4; }
        return count + (value >= 10) + (value >= 100) + (value >= 1000);
    }

    /* A number as decimal text, kept while it stays the same: text[20 - length .. 20]. */
    typedef struct { uint64_t value; int length; uint8_t text[24]; } tr_Digits;

    static void tr_make_digits(tr_Digits *digits, uint64_t value) {
        uint8_t *at = digits->text + 20;
        digits->value = value;
        do { *--at = (uint8_t)('0' + value % 10); value /= 10; } while (value);
        digits->length = (int)(digits->text + 20 - at);
    }

    static inline void tr_set_digits(tr_Digits *digits, uint64_t value) {
        if (digits->value != value) tr_make_digits(digits, value);
    }

    static inline void tr_count_up(tr_Digits *digits) {
        uint8_t *last = digits->text + 19;
        if (*last != '9') { ++*last; ++digits->value; }
        else tr_make_digits(digits, digits->value + 1);
    }

    static inline uint8_t *tr_put_digits(uint8_t *out, const tr_Digits *digits) {
        memcpy(out, digits->text + 20 - digits->length, (size_t)digits->length);
        return out + digits->length;
    }

    /* Bytes that no word of a line may have are written as %XX. */
    static inline int tr_is_escaped(uint8_t byte) {
        return byte <= 32 || byte == 127 || byte == '|' || byte == '%';
    }

    static inline size_t tr_word_bytes(const uint8_t *p, size_t size) {
        size_t count = size;
        for (size_t i = 0; i < size; i++) count += tr_is_escaped(p[i]) ? 2 : 0;
        return count;
    }

    static inline uint8_t *tr_put_word(uint8_t *out, const uint8_t *p, size_t size) {
        for (size_t i = 0; i < size; i++) {
            if (tr_is_escaped(p[i])) {
                *out++ = '%'; *out++ = "0123456789ABCDEF"[p[i] >> 4]; *out++ = "0123456789ABCDEF"[p[i] & 15];
            } else *out++ = p[i];
        }
        return out;
    }
    """
    size_t tr_word_bytes(const uint8_t *p, size_t size) noexcept nogil
    uint8_t *tr_put_word(uint8_t *out, const uint8_t *p, size_t size) noexcept nogil
    int tr_digit_count(uint64_t value) noexcept nogil
    ctypedef struct Digits "tr_Digits":
        pass
    void tr_make_digits(Digits *digits, uint64_t value) noexcept nogil
    void tr_set_digits(Digits *digits, uint64_t value) noexcept nogil
    void tr_count_up(Digits *digits) noexcept nogil
    uint8_t *tr_put_digits(uint8_t *out, const Digits *digits) noexcept nogil

cdef struct Walk:
    uint64_t next_seq
    uint64_t limit_seq
    uint64_t count
    Py_ssize_t position
    Py_ssize_t text_bytes
    Py_ssize_t prefix_bytes
    bint gaps
