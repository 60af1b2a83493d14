# The C side of packets_cy.py.

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcmp, memcpy

from tailrace.protocol.topic_table cimport tr_place
from tailrace.shard.frame_cy cimport tr_load32, tr_store16, tr_store32

cdef extern from *:
    """
    #include <errno.h>
    #include <netinet/in.h>
    #include <netinet/udp.h>
    #include <stdint.h>
    #include <string.h>
    #include <sys/socket.h>
    #include <sys/uio.h>

    #ifndef UDP_SEGMENT
    #define UDP_SEGMENT 103
    #endif
    #ifndef UDP_GRO
    #define UDP_GRO 104
    #endif

    #define TR_BATCH 64
    #define TR_SEGMENTS 64
    #define TR_PIECES 1024
    #define TR_NAME_BYTES 28

    static int tr_join(int fd) {
        int one = 1;
        return setsockopt(fd, IPPROTO_UDP, UDP_GRO, &one, sizeof(one));
    }

    /* The length of the datagrams that the kernel has joined to this message; 0 if it is a single one. */
    static size_t tr_joined(struct msghdr *head) {
        int length = 0;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(head); c; c = CMSG_NXTHDR(head, c))
            if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) memcpy(&length, CMSG_DATA(c), sizeof(length));
        return length > 0 ? (size_t)length : 0;
    }

    /* Messages into slots of `stride` bytes; how many, or -1. `found` becomes the number of their datagrams, `room` of
       them at most, and `nbytes` their bytes. */
    static int tr_receive(
        int fd, uint8_t *slots, size_t stride, uint32_t *starts, uint8_t *names, uint32_t *lengths, unsigned int count,
        size_t room, size_t *found, size_t *nbytes
    ) {
        struct mmsghdr messages[TR_BATCH];
        struct iovec pieces[TR_BATCH];
        uint8_t senders[TR_BATCH][TR_NAME_BYTES];
        union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } controls[TR_BATCH];
        size_t n = 0;
        int got;
        if (count > TR_BATCH) count = TR_BATCH;
        memset(messages, 0, count * sizeof(messages[0]));
        memset(senders, 0, sizeof(senders));
        for (unsigned int i = 0; i < count; i++) {
            pieces[i].iov_base = slots + i * stride;
            pieces[i].iov_len = stride;
            messages[i].msg_hdr.msg_iov = &pieces[i];
            messages[i].msg_hdr.msg_iovlen = 1;
            messages[i].msg_hdr.msg_name = senders[i];
            messages[i].msg_hdr.msg_namelen = TR_NAME_BYTES;
            messages[i].msg_hdr.msg_control = controls[i].bytes;
            messages[i].msg_hdr.msg_controllen = sizeof(controls[i].bytes);
        }
        do got = recvmmsg(fd, messages, count, MSG_DONTWAIT, NULL); while (got < 0 && errno == EINTR);
        for (int i = 0; i < got; i++) {
            size_t whole = messages[i].msg_len, each = tr_joined(&messages[i].msg_hdr), at = 0;
            *nbytes += whole;
            if (!each || each > whole) each = whole;
            do {
                if (n == room) break;
                starts[n] = (uint32_t)(i * stride + at);
                lengths[n] = (uint32_t)(whole - at < each ? whole - at : each);
                memcpy(names + n++ * TR_NAME_BYTES, senders[i], TR_NAME_BYTES);
                at += each;
            } while (at < whole);
        }
        *found = n;
        return got;
    }

    static inline socklen_t tr_name_length(const uint8_t *name) {
        return ((const struct sockaddr *)name)->sa_family == AF_INET ? sizeof(struct sockaddr_in)
            : sizeof(struct sockaddr_in6);
    }

    typedef struct { size_t next, sent, sent_bytes, lost; int blocked, segments; } tr_sending;

    /* Entries of 40 bytes: an address of 28, 4 of nothing, place and length of the text. Those of one address and
       length that follow each other are one message of segments, if `segments` says so; a kernel or a network that
       has none of that gets them one by one. At most `most` entries. */
    static void tr_send(
        int fd, const uint8_t *entries, size_t count, const uint8_t *texts, size_t most, tr_sending *s
    ) {
        struct mmsghdr messages[TR_BATCH];
        struct iovec pieces[TR_PIECES];
        union { char bytes[CMSG_SPACE(sizeof(uint16_t))]; struct cmsghdr align; } controls[TR_BATCH];
        size_t parts[TR_BATCH];
        size_t end = s->next + most < count ? s->next + most : count;
        s->blocked = 0;
        while (s->next < end) {
            size_t at = s->next, piece = 0;
            int made = 0;
            while (at < end && made < TR_BATCH && piece < TR_PIECES) {
                const uint8_t *entry = entries + 40 * at;
                uint32_t place, length, other;
                size_t first = piece, total = 0;
                memcpy(&length, entry + 36, 4);
                do {
                    const uint8_t *same = entries + 40 * at;
                    memcpy(&place, same + 32, 4);
                    memcpy(&other, same + 36, 4);
                    pieces[piece].iov_base = (void *)(texts + place);
                    pieces[piece].iov_len = other;
                    piece++; at++; total += other;
                } while (s->segments && at < end && piece < TR_PIECES && piece - first < TR_SEGMENTS && length <= 1400
                    && length && other == length && total + length <= 60000
                    && memcmp(entries + 40 * at, entry, 28) == 0
                    && memcmp(entries + 40 * at + 36, entry + 36, 4) == 0);
                struct msghdr *head = &messages[made].msg_hdr;
                memset(head, 0, sizeof(*head));
                head->msg_name = (void *)entry;
                head->msg_namelen = tr_name_length(entry);
                head->msg_iov = &pieces[first];
                head->msg_iovlen = piece - first;
                if (piece - first > 1) {
                    uint16_t segment = (uint16_t)length;
                    head->msg_control = controls[made].bytes;
                    head->msg_controllen = sizeof(controls[made].bytes);
                    struct cmsghdr *control = CMSG_FIRSTHDR(head);
                    control->cmsg_level = IPPROTO_UDP;
                    control->cmsg_type = UDP_SEGMENT;
                    control->cmsg_len = CMSG_LEN(sizeof(uint16_t));
                    memcpy(CMSG_DATA(control), &segment, sizeof(uint16_t));
                }
                parts[made++] = piece - first;
            }
            int done;
            do done = sendmmsg(fd, messages, made, MSG_DONTWAIT | MSG_NOSIGNAL); while (done < 0 && errno == EINTR);
            if (done < 0) {
                if (errno == EAGAIN || errno == ENOBUFS) { s->blocked = 1; return; }
                if (parts[0] > 1) { s->segments = 0; continue; }
                s->lost += 1; s->next += 1;
                continue;
            }
            for (int i = 0; i < done; i++) {
                for (size_t j = 0; j < parts[i]; j++) s->sent_bytes += messages[i].msg_hdr.msg_iov[j].iov_len;
                s->next += parts[i]; s->sent += parts[i];
            }
        }
    }
    """
    ctypedef struct tr_sending:
        size_t next
        size_t sent
        size_t sent_bytes
        size_t lost
        int blocked
        int segments

    int tr_join(int fd) nogil
    int tr_receive(
        int fd, uint8_t *slots, size_t stride, uint32_t *starts, uint8_t *names, uint32_t *lengths, unsigned int count,
        size_t room, size_t *found, size_t *nbytes
    ) nogil
    void tr_send(
        int fd, const uint8_t *entries, size_t count, const uint8_t *texts, size_t most, tr_sending *s
    ) nogil

# For runs_cy.py.
cdef Py_ssize_t _topic_start(const unsigned char *data, Py_ssize_t length) noexcept
cdef Py_ssize_t _topic_length(const unsigned char *data, Py_ssize_t begin, Py_ssize_t length) noexcept
