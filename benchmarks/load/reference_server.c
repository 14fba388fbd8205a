/* A streaming server whose true times are known: it answers every completion with N tokens on a fixed schedule
 * and logs when each request arrived and when its tokens left. One thread, epoll and one timerfd.
 *
 * A request arrives when its last byte reaches this machine's network stack (SO_TIMESTAMPNS), so that a server
 * that is late to read does not look like a late client. A token leaves when write() is called for it.
 *
 * Usage: reference_server --log FILE [--ttft-us N] [--tpot-us N] [--port N]
 * Prints its port. A request's max_tokens (or max_completion_tokens) says how many tokens it gets. On SIGTERM
 * writes one line per finished request: arrival, first and last token in ns of CLOCK_MONOTONIC, tokens, the
 * largest delay against the schedule in ns; then it exits. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REQUEST_BYTES_MAX (1 << 20)
#define CONNECTIONS_MAX 16384
#define TOKENS_DEFAULT 64

typedef struct {
    int fd;
    char *in;
    size_t in_length, in_room;
    int64_t arrived_ns, due_ns, first_ns, last_ns, late_ns;
    int tokens, sent, streaming, is_chat, wants_usage;
    size_t heap_place; /* 0: not in the heap */
} Connection;

typedef struct {
    int64_t arrived_ns, first_ns, last_ns, late_ns;
    int tokens;
} Entry;

static int64_t ttft_ns = 50000000, tpot_ns = 10000000;
static Connection *connections[CONNECTIONS_MAX];
static Connection *heap[CONNECTIONS_MAX + 1];
static size_t heap_length;
static Entry *entries;
static size_t entry_count, entry_room;
static int64_t broken_off;
static int poller, timer;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* The heap: the connection whose next token is due first is heap[1]. */

static void heap_put(Connection *c, size_t place) {
    heap[place] = c;
    c->heap_place = place;
}

static void heap_sift(size_t place) {
    Connection *c = heap[place];
    while (place > 1 && heap[place / 2]->due_ns > c->due_ns) {
        heap_put(heap[place / 2], place);
        place /= 2;
    }
    for (;;) {
        size_t child = 2 * place;
        if (child > heap_length) break;
        if (child < heap_length && heap[child + 1]->due_ns < heap[child]->due_ns) child++;
        if (heap[child]->due_ns >= c->due_ns) break;
        heap_put(heap[child], place);
        place = child;
    }
    heap_put(c, place);
}

static void heap_add(Connection *c) {
    heap_put(c, ++heap_length);
    heap_sift(heap_length);
}

static void heap_remove(Connection *c) {
    size_t place = c->heap_place;
    c->heap_place = 0;
    Connection *last = heap[heap_length--];
    if (last != c) {
        heap_put(last, place);
        heap_sift(place);
    }
}

static void set_timer(void) {
    static int64_t set_to;
    int64_t due = heap_length ? heap[1]->due_ns : 0;
    if (due == set_to) return;
    set_to = due;
    struct itimerspec when = {.it_value = {due / 1000000000LL, due % 1000000000LL}};
    if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL) < 0) die("timerfd_settime");
}

static void hang_up(Connection *c) {
    if (c->heap_place) {
        heap_remove(c);
        broken_off++;
    }
    close(c->fd);
    connections[c->fd] = NULL;
    free(c->in);
    free(c);
}

/* Answers are small against a socket's buffer; one that does not fit is a client that stopped reading. */
static int say(Connection *c, const char *data, size_t length) {
    ssize_t done = send(c->fd, data, length, MSG_NOSIGNAL);
    return done == (ssize_t)length ? 0 : -1;
}

static int say_plain(Connection *c, const char *status, const char *body) {
    char out[2048];
    int length = snprintf(out, sizeof out,
                          "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", status,
                          strlen(body), body);
    return say(c, out, (size_t)length);
}

/* One event as one HTTP chunk, as uvicorn sends it. */
static size_t put_event(char *out, const char *data, int length) {
    return (size_t)sprintf(out, "%x\r\ndata: %s\n\n\r\n", (unsigned)length + 8, data);
}

static size_t put_choice(char *out, const Connection *c, const char *text, const char *finish, int is_role) {
    char data[512];
    const char *kind = c->is_chat ? "chat.completion.chunk" : "text_completion";
    int length = sprintf(data, "{\"id\":\"cmpl-%016llx\",\"object\":\"%s\",\"created\":1760000000,\"model\":\"reference\",",
                         (unsigned long long)c->arrived_ns, kind);
    if (!c->is_chat)
        length += sprintf(data + length, "\"choices\":[{\"index\":0,\"text\":\"%s\",\"logprobs\":null,", text);
    else if (is_role)
        length += sprintf(data + length,
                          "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,");
    else
        length += sprintf(data + length, "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"},\"logprobs\":null,", text);
    length += sprintf(data + length, "\"finish_reason\":%s}]}", finish);
    return put_event(out, data, length);
}

static size_t put_usage(char *out, const Connection *c) {
    char data[512];
    int length = sprintf(data,
                         "{\"id\":\"cmpl-%016llx\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,"
                         "\"model\":\"reference\",\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"total_tokens\":%d,"
                         "\"completion_tokens\":%d}}",
                         (unsigned long long)c->arrived_ns, 100 + c->tokens, c->tokens);
    return put_event(out, data, length);
}

static void log_finished(const Connection *c) {
    if (entry_count == entry_room) {
        entry_room = entry_room ? entry_room * 2 : 4096;
        entries = realloc(entries, entry_room * sizeof *entries);
        if (!entries) die("realloc");
    }
    entries[entry_count++] = (Entry){c->arrived_ns, c->first_ns, c->last_ns, c->late_ns, c->tokens};
}

static void send_token(Connection *c) {
    static const char *words[] = {" The", " keeper", " counts", " every", " boat", " in", " the", " harbour"};
    char out[4096];
    size_t length = 0;
    int is_first = c->sent == 0, is_last = c->sent + 1 == c->tokens;
    if (is_first) {
        length += (size_t)sprintf(out,
                                  "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                                  "Transfer-Encoding: chunked\r\n\r\n");
        if (c->is_chat) length += put_choice(out + length, c, "", "null", 1);
    }
    length += put_choice(out + length, c, words[c->sent % 8], is_last ? "\"length\"" : "null", 0);
    if (is_last) {
        if (c->wants_usage) length += put_usage(out + length, c);
        length += (size_t)sprintf(out + length, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
    }
    int64_t now = now_ns(CLOCK_MONOTONIC);
    if (is_first) c->first_ns = now;
    c->last_ns = now;
    if (now - c->due_ns > c->late_ns) c->late_ns = now - c->due_ns;
    if (say(c, out, length) < 0) {
        hang_up(c);
        return;
    }
    c->sent++;
    if (is_last) {
        heap_remove(c);
        c->streaming = 0;
        log_finished(c);
    } else {
        c->due_ns += tpot_ns;
        heap_sift(c->heap_place);
    }
}

static int number_after(const char *body, const char *key) {
    const char *found = strstr(body, key);
    if (!found) return 0;
    found += strlen(key);
    while (*found == ' ' || *found == ':') found++;
    return atoi(found);
}

/* 1: one whole request was taken off the buffer; 0: more bytes are needed; -1: the connection is of no use. */
static int take_request(Connection *c) {
    c->in[c->in_length] = 0;
    char *end = strstr(c->in, "\r\n\r\n");
    if (!end) return 0;
    char *field = strcasestr(c->in, "\r\nContent-Length:");
    size_t body_length = field && field < end ? strtoul(field + 17, NULL, 10) : 0;
    size_t whole = (size_t)(end - c->in) + 4 + body_length;
    if (whole > REQUEST_BYTES_MAX) return -1;
    if (c->in_length < whole) return 0;
    char after = c->in[whole];
    c->in[whole] = 0;
    const char *body = end + 4;
    int result = 1;
    if (!strncmp(c->in, "POST /v1/", 9)) {
        int tokens = number_after(body, "\"max_tokens\"");
        if (!tokens) tokens = number_after(body, "\"max_completion_tokens\"");
        c->tokens = tokens > 0 ? tokens : TOKENS_DEFAULT;
        c->is_chat = !strncmp(c->in + 9, "chat/", 5);
        c->wants_usage = strstr(body, "include_usage") != NULL;
        c->sent = 0;
        c->late_ns = 0;
        c->streaming = 1;
        c->due_ns = c->arrived_ns + ttft_ns;
        heap_add(c);
    } else if (!strncmp(c->in, "GET /v1/models", 14)) {
        result = say_plain(c, "200 OK",
                           "{\"object\":\"list\",\"data\":[{\"id\":\"reference\",\"object\":\"model\",\"created\":1,"
                           "\"owned_by\":\"reference\"}]}") < 0 ? -1 : 1;
    } else if (!strncmp(c->in, "GET /health", 11)) {
        result = say_plain(c, "200 OK", "{\"status\":\"ok\"}") < 0 ? -1 : 1;
    } else {
        result = say_plain(c, "404 Not Found", "{\"error\":\"no such path\"}") < 0 ? -1 : 1;
    }
    c->in[whole] = after;
    memmove(c->in, c->in + whole, c->in_length - whole);
    c->in_length -= whole;
    return result;
}

/* Bytes of one read with the moment the kernel got them, on CLOCK_MONOTONIC. */
static ssize_t receive(Connection *c, int64_t *arrived_ns) {
    if (c->in_room - c->in_length < 16384) {
        c->in_room += 65536;
        if (c->in_room > 2 * REQUEST_BYTES_MAX) return 0;
        c->in = realloc(c->in, c->in_room + 1);
        if (!c->in) die("realloc");
    }
    char control[128];
    struct iovec part = {c->in + c->in_length, c->in_room - c->in_length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(c->fd, &message, 0);
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

static void read_from(Connection *c) {
    int64_t arrived_ns;
    ssize_t got = receive(c, &arrived_ns);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        hang_up(c);
        return;
    }
    c->in_length += (size_t)got;
    if (c->streaming) return; /* pipelined: taken up when this answer ends, which no tool here does */
    c->arrived_ns = arrived_ns;
    int taken;
    while (!c->streaming && (taken = take_request(c)) == 1) {}
    if (!c->streaming && taken < 0) hang_up(c);
}

static void accept_all(int listener) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EAGAIN || errno == ECONNABORTED) return;
            die("accept4");
        }
        if (fd >= CONNECTIONS_MAX) {
            close(fd);
            continue;
        }
        int yes = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &yes, sizeof yes);
        Connection *c = calloc(1, sizeof *c);
        if (!c) die("calloc");
        c->fd = fd;
        connections[fd] = c;
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) < 0) die("epoll_ctl");
    }
}

static int listen_on(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), yes = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &yes, sizeof yes); /* inherited; starts the kernel's clock early */
    if (bind(fd, (struct sockaddr *)&address, length) < 0) die("bind");
    if (listen(fd, 8192) < 0) die("listen");
    getsockname(fd, (struct sockaddr *)&address, &length);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static void write_log(const char *path) {
    FILE *out = fopen(path, "w");
    if (!out) die(path);
    fprintf(out, "# arrived_ns first_ns last_ns tokens late_ns; %lld broken off\n", (long long)broken_off);
    for (size_t i = 0; i < entry_count; i++)
        fprintf(out, "%lld %lld %lld %d %lld\n", (long long)entries[i].arrived_ns, (long long)entries[i].first_ns,
                (long long)entries[i].last_ns, entries[i].tokens, (long long)entries[i].late_ns);
    if (fclose(out)) die(path);
}

static void serve(int listener, int signals, const char *log_path) {
    struct epoll_event events[512];
    for (;;) {
        set_timer();
        int count = epoll_wait(poller, events, 512, -1);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) accept_all(listener);
            else if (fd == timer) {
                uint64_t ticks;
                if (read(timer, &ticks, sizeof ticks) < 0 && errno != EAGAIN) die("read timerfd");
            } else if (fd == signals) {
                write_log(log_path);
                return;
            } else if (connections[fd]) read_from(connections[fd]);
        }
        int64_t now = now_ns(CLOCK_MONOTONIC);
        while (heap_length && heap[1]->due_ns <= now) send_token(heap[1]);
    }
}

int main(int argc, char **argv) {
    const char *log_path = NULL;
    int port = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--log")) log_path = argv[i + 1];
        else if (!strcmp(argv[i], "--ttft-us")) ttft_ns = atoll(argv[i + 1]) * 1000;
        else if (!strcmp(argv[i], "--tpot-us")) tpot_ns = atoll(argv[i + 1]) * 1000;
        else if (!strcmp(argv[i], "--port")) port = atoi(argv[i + 1]);
        else return fprintf(stderr, "unknown option %s\n", argv[i]), 2;
    }
    if (!log_path) return fprintf(stderr, "--log FILE is missing\n"), 2;
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max < CONNECTIONS_MAX ? limit.rlim_max : CONNECTIONS_MAX;
    setrlimit(RLIMIT_NOFILE, &limit);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    poller = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    int signals = signalfd(-1, &set, SFD_CLOEXEC), listener = listen_on(port);
    int own[] = {timer, signals, listener};
    for (int i = 0; i < 3; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = own[i]};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, own[i], &event) < 0) die("epoll_ctl");
    }
    serve(listener, signals, log_path);
    return 0;
}
