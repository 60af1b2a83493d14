/* The least that a broker of datagrams could do: it receives them with recvmmsg, and sends as many of MESSAGE_BYTES to
   each subscriber with sendmmsg.

       plain_udp PORT MESSAGE_BYTES

   A line over TCP to the same port is answered `ok NUMBER`: `count` with the datagrams received so far, and
   `subscribe PORT` with the number of subscribers, of which this port is the next. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BATCH = 64, DATAGRAM_BYTES = 2048, SUBSCRIBERS_MAX = 64, RECEIVE_BYTES = 4 << 20, TURNS = 16 };

static char slots[BATCH][DATAGRAM_BYTES], message[65536];
static struct mmsghdr in[BATCH], out[BATCH];
static struct iovec pieces[BATCH], text = {message, 0};
static struct sockaddr_in subscribers[SUBSCRIBERS_MAX];
static unsigned long received;
static int subscriber_count;

static int listening(int type, int port) {
    int fd = socket(AF_INET, type, 0), is_tcp = type == SOCK_STREAM, value = is_tcp ? 1 : RECEIVE_BYTES;
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    setsockopt(fd, SOL_SOCKET, is_tcp ? SO_REUSEADDR : SO_RCVBUF, &value, sizeof(value));
    if (fd < 0 || bind(fd, (struct sockaddr *)&name, sizeof(name)) || (is_tcp && listen(fd, 16))) {
        perror("plain_udp");
        exit(1);
    }
    return fd;
}

static void prepare(void) {
    for (int i = 0; i < BATCH; i++) {
        pieces[i] = (struct iovec){slots[i], DATAGRAM_BYTES};
        in[i].msg_hdr = (struct msghdr){.msg_iov = &pieces[i], .msg_iovlen = 1};
        if (subscriber_count)
            out[i].msg_hdr = (struct msghdr){&subscribers[i % subscriber_count], sizeof(struct sockaddr_in), &text, 1, 0, 0, 0};
    }
}

static void serve(int listener) {
    char line[100], answer[40];
    int port, fd = accept(listener, NULL, NULL);
    ssize_t size = fd < 0 ? -1 : recv(fd, line, sizeof(line) - 1, 0);
    if (size > 0) {
        line[size] = 0;
        unsigned long number = received;
        if (sscanf(line, "subscribe %d", &port) == 1 && subscriber_count < SUBSCRIBERS_MAX) {
            subscribers[subscriber_count] = (struct sockaddr_in){AF_INET, htons(port), {htonl(INADDR_LOOPBACK)}, {0}};
            number = ++subscriber_count;
            prepare();
        }
        size = snprintf(answer, sizeof(answer), "ok %lu\r\n", number);
        if (send(fd, answer, size, MSG_NOSIGNAL) != size) perror("plain_udp");
    }
    if (fd >= 0) close(fd);
}

static void send_all(int fd, int left) {
    int made = BATCH / subscriber_count * subscriber_count;
    while (left > 0) {
        int sent = sendmmsg(fd, out, left < made ? left : made, 0);
        if (sent <= 0) return perror("plain_udp");
        left -= sent;
    }
}

static void relay(int fd) {
    for (int turn = 0; turn < TURNS; turn++) {
        int got = recvmmsg(fd, in, BATCH, MSG_DONTWAIT, NULL);
        if (got <= 0) return;
        received += got;
        if (subscriber_count) send_all(fd, got * subscriber_count);
    }
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int port = atoi(argv[1]);
    text.iov_len = atoi(argv[2]);
    if (text.iov_len > sizeof(message)) return 2;
    memset(message, 'm', sizeof(message));
    prepare();
    struct pollfd both[] = {{listening(SOCK_DGRAM, port), POLLIN, 0}, {listening(SOCK_STREAM, port), POLLIN, 0}};
    while (poll(both, 2, -1) > 0) {
        if (both[0].revents) relay(both[0].fd);
        if (both[1].revents) serve(both[1].fd);
    }
    return 1;
}
