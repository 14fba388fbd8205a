/* Sends requests at fixed moments on many streams and notes when each answer began and ended. One thread, epoll.
 *
 * A stream's n-th request is due at its start + n * period. One that is due while the stream still gets its last
 * answer is sent when that ends, and its times count from when it was due: a slow server cannot slow the clock.
 * The first event's moment is the kernel's (SO_TIMESTAMPNS), so that a busy driver does not make a server look slow.
 *
 * Usage: driver --ports N[,N...] --body FILE --streams N --period-us N --seconds N --tokens N
 * Streams begin evenly over the first period. Prints one line per request that was due: due, sent, first event and
 * end in ns of CLOCK_MONOTONIC (0: never), tokens received, HTTP status (0: none). */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define STREAMS_MAX 8192
#define PORTS_MAX 8
#define READ_BYTES 65536
/* LiteLLM does not start without a key of its own; nobody else asks for one. Guards nothing: loopback, for seconds. */
#define KEY "sk-loopback-benchmark-of-a-gateway-0000"
/* Answers that have not ended so long after the last moment are given up. */
#define GRACE_NS 1000000000LL

static const char EVENT[] = "data: {", DONE[] = "data: [DONE]", LAST[] = "0\r\n\r\n";

typedef struct {
    int fd, port, busy, status;
    int64_t due_ns, sent_ns, first_ns;
    int events, event_place, done_place, is_done;
    char tail[5], head[13];
    size_t head_length;
} Stream;

static Stream streams[STREAMS_MAX];
static int stream_count, tokens = 60, poller, is_over;
static int64_t period_ns = 3000000000LL, end_ns;
static char *request;
static size_t request_length;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void report(Stream *s, int64_t ended_ns) {
    int got = s->events - 1; /* the first event carries the role */
    printf("%lld %lld %lld %lld %d %d\n", (long long)s->due_ns, (long long)s->sent_ns, (long long)s->first_ns,
           (long long)ended_ns, got < 0 ? 0 : got > tokens ? tokens : got, s->status);
    s->busy = 0;
    s->due_ns += period_ns;
}

static void hang_up(Stream *s) {
    close(s->fd);
    s->fd = -1;
}

static void connect_to(Stream *s) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)s->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int yes = 1;
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->fd < 0) die("socket");
    if (connect(s->fd, (struct sockaddr *)&to, sizeof to) < 0) die("connect");
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(s->fd, SOL_SOCKET, SO_TIMESTAMPNS, &yes, sizeof yes);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = s};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, s->fd, &event) < 0) die("epoll_ctl");
}

static void start(Stream *s) {
    if (s->fd < 0) connect_to(s);
    s->busy = 1;
    s->status = s->events = s->event_place = s->done_place = s->is_done = 0;
    s->head_length = 0;
    s->first_ns = 0;
    memset(s->tail, 0, sizeof s->tail);
    s->sent_ns = now_ns(CLOCK_MONOTONIC);
    if (send(s->fd, request, request_length, MSG_NOSIGNAL) != (ssize_t)request_length) {
        hang_up(s);
        report(s, 0);
    }
}

/* Neither pattern's first letter comes again in it before the place where the other letters tell. */
static int matched(const char *pattern, int *place, char letter) {
    if (letter != pattern[*place]) *place = 0;
    if (letter == pattern[*place] && !pattern[++*place]) {
        *place = 0;
        return 1;
    }
    return 0;
}

static void take(Stream *s, const char *data, size_t length, int64_t arrived_ns) {
    while (s->head_length < 12 && length) {
        s->head[s->head_length++] = *data;
        if (s->head_length == 12) s->status = atoi(s->head + 9);
        data++, length--;
    }
    for (size_t i = 0; i < length; i++) {
        if (matched(EVENT, &s->event_place, data[i]) && !s->events++) s->first_ns = arrived_ns;
        if (matched(DONE, &s->done_place, data[i])) s->is_done = 1;
    }
    size_t kept = length < 5 ? 5 - length : 0;
    memmove(s->tail, s->tail + 5 - kept, kept);
    memcpy(s->tail + kept, data + length - (5 - kept), 5 - kept);
}

/* Bytes of one read with the moment the kernel got them, on CLOCK_MONOTONIC. */
static ssize_t receive(Stream *s, char *into, int64_t *arrived_ns) {
    char control[128];
    struct iovec part = {into, READ_BYTES};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(s->fd, &message, MSG_DONTWAIT);
    int64_t monotonic = now_ns(CLOCK_MONOTONIC), real = now_ns(CLOCK_REALTIME);
    *arrived_ns = monotonic;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&message); got > 0 && h; h = CMSG_NXTHDR(&message, h))
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec t;
            memcpy(&t, CMSG_DATA(h), sizeof t);
            int64_t age = real - (t.tv_sec * 1000000000LL + t.tv_nsec);
            if (age > 0 && age < 10000000000LL) *arrived_ns = monotonic - age;
        }
    return got;
}

static void read_from(Stream *s) {
    static char data[READ_BYTES];
    int64_t arrived_ns;
    ssize_t got = receive(s, data, &arrived_ns);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        hang_up(s);
        if (s->busy) report(s, 0);
        return;
    }
    if (!s->busy) return;
    take(s, data, (size_t)got, arrived_ns);
    if (s->status && s->status != 200) { /* an error's body is not read to its end */
        hang_up(s);
        report(s, 0);
    } else if (s->is_done && !memcmp(s->tail, LAST, 5)) report(s, arrived_ns);
}

/* Sends what is due; gives the next moment at which something will be. Streams are few enough to look at all. */
static int64_t send_due(void) {
    int64_t now = now_ns(CLOCK_MONOTONIC), next = INT64_MAX;
    for (int i = 0; i < stream_count; i++) {
        Stream *s = &streams[i];
        if (s->busy || s->due_ns >= end_ns) continue;
        if (s->due_ns <= now) start(s);
        else if (s->due_ns < next) next = s->due_ns;
    }
    return next;
}

static int any_busy(void) {
    for (int i = 0; i < stream_count; i++)
        if (streams[i].busy) return 1;
    return 0;
}

static void drive(void) {
    struct epoll_event events[512];
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event own = {.events = EPOLLIN, .data.ptr = NULL};
    if (timer < 0 || epoll_ctl(poller, EPOLL_CTL_ADD, timer, &own) < 0) die("timerfd");
    int64_t set_to = 0, next = 0;
    for (;;) {
        int64_t now = now_ns(CLOCK_MONOTONIC);
        if (now >= next || is_over) next = send_due(), is_over = 0;
        if (next == INT64_MAX) {
            if (!any_busy() || now > end_ns + period_ns + GRACE_NS) return;
            next = now + 100000000;
        }
        if (next != set_to) {
            struct itimerspec when = {.it_value = {next / 1000000000LL, next % 1000000000LL}};
            if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL) < 0) die("timerfd_settime");
            set_to = next;
        }
        int count = epoll_wait(poller, events, 512, -1);
        for (int i = 0; i < count; i++) {
            Stream *s = events[i].data.ptr;
            if (s && s->fd >= 0) {
                read_from(s);
                if (!s->busy) is_over = 1; /* its next request may be due already */
            } else if (!s) {
                uint64_t ticks;
                if (read(timer, &ticks, sizeof ticks) < 0 && errno != EAGAIN) die("read timerfd");
            }
        }
    }
}

static void read_body(const char *path) {
    FILE *in = fopen(path, "r");
    if (!in) die(path);
    static char body[1 << 20];
    size_t length = fread(body, 1, sizeof body, in);
    fclose(in);
    request = malloc(length + 512);
    if (!request) die("malloc");
    request_length = (size_t)sprintf(request,
                                     "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n"
                                     "Content-Type: application/json\r\nUser-Agent: driver\r\n"
                                     "Authorization: Bearer " KEY "\r\nContent-Length: %zu\r\n\r\n", length);
    memcpy(request + request_length, body, length);
    request_length += length;
}

int main(int argc, char **argv) {
    int ports[PORTS_MAX], port_count = 0;
    double seconds = 10;
    for (int i = 1; i + 1 < argc; i += 2) {
        char *value = argv[i + 1];
        if (!strcmp(argv[i], "--ports"))
            for (char *one = strtok(value, ","); one && port_count < PORTS_MAX; one = strtok(NULL, ","))
                ports[port_count++] = atoi(one);
        else if (!strcmp(argv[i], "--body")) read_body(value);
        else if (!strcmp(argv[i], "--streams")) stream_count = atoi(value);
        else if (!strcmp(argv[i], "--period-us")) period_ns = atoll(value) * 1000;
        else if (!strcmp(argv[i], "--seconds")) seconds = atof(value);
        else if (!strcmp(argv[i], "--tokens")) tokens = atoi(value);
        else return fprintf(stderr, "unknown option %s\n", argv[i]), 2;
    }
    if (!port_count || !request || stream_count < 1 || stream_count > STREAMS_MAX)
        return fprintf(stderr, "--ports, --body and --streams (at most %d) are needed\n", STREAMS_MAX), 2;
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    poller = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < stream_count; i++) streams[i] = (Stream){.fd = -1, .port = ports[i % port_count]};
    /* Connections are made beforehand: what they cost is not a token's time. */
    for (int i = 0; i < stream_count; i++) connect_to(&streams[i]);
    int64_t begin = now_ns(CLOCK_MONOTONIC) + 300000000;
    end_ns = begin + (int64_t)(seconds * 1e9);
    for (int i = 0; i < stream_count; i++) streams[i].due_ns = begin + period_ns * i / stream_count;
    drive();
    for (int i = 0; i < stream_count; i++)
        if (streams[i].busy) report(&streams[i], 0);
    return 0;
}
