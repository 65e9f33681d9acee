/* Reads the answers of a load stage, and skips the like events of an answer when it is decoded.
 *
 * Contains no Python: `reader.py` and `body.py` call it through ctypes with addresses and numbers. Nothing here frees
 * or keeps what it was lent. What a server sent is only copied and compared, by lengths that were counted here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 14, MOST_EVENTS = 1024, LEAST_ROOM = 1 << 12 };
enum { KEPT_ROOM = 1 << 15, KEPT_PLACES = 1 << 11 }; /* larger buffers of a connection are freed after each answer */
#define NS INT64_C(1000000000)
enum { PAUSE_NS = 200000, RATE_OVER_NS = 10000000, BUSY_READS_PER_S = 8000 };
#define TIMESTAMPING 37                                    /* SO_TIMESTAMPING, the option and its control message */
enum { NOTHING = 1, DATA = 0, CLOSED = INT32_MIN };        /* a notice; any other is -errno */
enum { OFF, NOTIFY_EACH_READ, NOTIFY_ON_END };

/* A connection: unread bytes one after the other, and of each read its instant and its size. */
struct slot {
    int state;
    char *raw;
    size_t size, room, came; /* came: all bytes of this answer, taken ones included */
    int64_t *marks;
    size_t count, places;
};

struct reader {
    int epoll, audited, known; /* known: how many slots there are; a slot's number is its descriptor */
    int busy;                  /* more reads a second than BUSY_READS_PER_S */
    int64_t reads, since_ns;   /* of the stretch over which that is measured */
    size_t longest;            /* bytes of an answer: a notice is given of a longer one */
    struct slot *slots;
    struct epoll_event events[MOST_EVENTS];
    size_t delay_count;
    int64_t delays[MOST_EVENTS]; /* of audited reads since the last call, in ns; -1 without a kernel timestamp */
    char read[READ_BYTES];
};

/* Identifies the source this was compiled from, so that no older library is used. */
uint32_t source(void) { return SOURCE; }

void reader_stop(struct reader *reader) {
    for (int each = 0; each < reader->known; each++) {
        free(reader->slots[each].raw);
        free(reader->slots[each].marks);
    }
    free(reader->slots);
    if (reader->epoll >= 0) close(reader->epoll);
    free(reader);
}

static int64_t now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * NS + now.tv_nsec;
}

/* With `audited`, the kernel's receive timestamps are compared with the clock. NULL when there is no memory or epoll. */
struct reader *reader_start(size_t longest, int audited) {
    struct reader *reader = calloc(1, sizeof *reader);
    if (!reader) return NULL;
    reader->longest = longest;
    reader->audited = audited;
    reader->since_ns = now_ns(CLOCK_MONOTONIC);
    reader->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (reader->epoll >= 0) return reader;
    reader_stop(reader);
    return NULL;
}

/* Readable when a connection is. */
int reader_descriptor(const struct reader *reader) { return reader->epoll; }

/* Read this socket from now on and give a notice of every read. 0, or -1 when it cannot be read here. */
int reader_attach(struct reader *reader, int descriptor) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = descriptor};
    if (descriptor < 0) return -1;
    if (descriptor >= reader->known) {
        int known = descriptor + 64;
        struct slot *slots = realloc(reader->slots, known * sizeof *slots);
        if (!slots) return -1;
        memset(slots + reader->known, 0, (known - reader->known) * sizeof *slots);
        reader->slots = slots;
        reader->known = known;
    }
    if (epoll_ctl(reader->epoll, EPOLL_CTL_ADD, descriptor, &event)) return -1;
    reader->slots[descriptor].state = NOTIFY_EACH_READ;
    return 0;
}

/* An answer is over: drop its bytes. Give a notice of every read of the next one. */
void reader_next(struct reader *reader, int descriptor) {
    struct slot *slot = reader->slots + descriptor;
    slot->state = NOTIFY_EACH_READ;
    slot->size = slot->count = slot->came = 0;
    if (slot->room > KEPT_ROOM) {
        free(slot->raw);
        slot->raw = NULL;
        slot->room = 0;
    }
    if (slot->places > KEPT_PLACES) {
        free(slot->marks);
        slot->marks = NULL;
        slot->places = 0;
    }
}

/* The body is in chunks: from now on give a notice only of reads that may end it. */
void reader_notify_on_end(struct reader *reader, int descriptor) { reader->slots[descriptor].state = NOTIFY_ON_END; }

/* Read this socket no more, while it is still open. */
void reader_detach(struct reader *reader, int descriptor) {
    epoll_ctl(reader->epoll, EPOLL_CTL_DEL, descriptor, NULL);
    reader_next(reader, descriptor);
    reader->slots[descriptor].state = OFF;
}

/* Take the unread bytes and marks: addresses and sizes, valid until the next call. Returns whether there are any. */
int reader_take(struct reader *reader, int descriptor, int64_t taken[4]) {
    struct slot *slot = reader->slots + descriptor;
    taken[0] = (intptr_t)slot->raw;
    taken[1] = slot->size;
    taken[2] = (intptr_t)slot->marks;
    taken[3] = slot->count;
    slot->size = slot->count = 0;
    return taken[1] > 0;
}

/* Copy the delays of audited reads since the last call to `delays`, which has room for MOST_EVENTS. */
int reader_delays(struct reader *reader, int64_t *delays) {
    int count = reader->delay_count;
    memcpy(delays, reader->delays, count * sizeof *delays);
    reader->delay_count = 0;
    return count;
}

static int keep(struct slot *slot, const char *data, size_t size, int64_t now_ns) {
    if (slot->room - slot->size < size) {
        size_t room = slot->room ? slot->room : LEAST_ROOM;
        while (room - slot->size < size) room *= 2;
        char *raw = realloc(slot->raw, room);
        if (!raw) return -1;
        slot->raw = raw;
        slot->room = room;
    }
    if (slot->places - slot->count < 2) {
        size_t places = slot->places ? slot->places * 2 : 256;
        int64_t *marks = realloc(slot->marks, places * sizeof *marks);
        if (!marks) return -1;
        slot->marks = marks;
        slot->places = places;
    }
    memcpy(slot->raw + slot->size, data, size);
    slot->size += size;
    slot->came += size;
    slot->marks[slot->count++] = now_ns;
    slot->marks[slot->count++] = size;
    return 0;
}

/* Receive with the kernel's timestamp and note how long ago that was. */
static ssize_t receive_audited(struct reader *reader, int descriptor) {
    union {
        char room[256];
        struct cmsghdr align;
    } control;
    struct iovec data = {reader->read, READ_BYTES};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    ssize_t size = recvmsg(descriptor, &message, MSG_DONTWAIT);
    if (size <= 0 || reader->delay_count == MOST_EVENTS) return size;
    int64_t delay_ns = -1;
    for (struct cmsghdr *each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each)) {
        struct timespec stamp;
        if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != TIMESTAMPING) continue;
        memcpy(&stamp, CMSG_DATA(each), sizeof stamp);
        if (!stamp.tv_sec) continue;
        int64_t ago_ns = now_ns(CLOCK_REALTIME) - (stamp.tv_sec * NS + stamp.tv_nsec);
        delay_ns = ago_ns < 0 ? -ago_ns : ago_ns; /* the clock may have been set either way */
    }
    reader->delays[reader->delay_count++] = delay_ns;
    return size;
}

static int ends_with(const char *data, size_t size, const char *end, size_t length) {
    return size >= length && !memcmp(data + size - length, end, length);
}
#define ENDS_WITH(data, size, end) ends_with(data, size, end, sizeof(end) - 1)

/* Search for the last chunk. This is done for every read, so only what follows a carriage return is compared. */
static int holds_last_chunk(const char *data, size_t size) {
    static const char last[] = "\r\n0\r\n\r\n";
    const char *at = data, *end = data + size;
    if (size >= sizeof last - 3 && !memcmp(data, last + 2, sizeof last - 3)) return 1;
    for (; (at = memchr(at, '\r', end - at)) && (size_t)(end - at) >= sizeof last - 1; at++)
        if (!memcmp(at, last, sizeof last - 1)) return 1;
    return 0;
}

/* Return whether a read may hold the end of a response in chunks, as `may_end` in `exchange.py` does. */
int may_end(const char *data, size_t size) {
    if (holds_last_chunk(data, size)) return 1;
    if (ENDS_WITH(data, size, "}\n\n\r\n")) return 0;
    return size < 16 || ENDS_WITH(data, size, "\r\n\r\n") || ENDS_WITH(data, size, "[DONE]\n\n\r\n") ||
           ENDS_WITH(data, size, "[DONE]\n\n");
}

/* Read a socket once. Returns the notice to give. */
static int32_t read_one(struct reader *reader, int descriptor) {
    struct slot *slot = reader->slots + descriptor;
    ssize_t size = reader->audited ? receive_audited(reader, descriptor)
                                   : recv(descriptor, reader->read, READ_BYTES, MSG_DONTWAIT);
    if (size == 0) return CLOSED;
    if (size < 0) return errno == EAGAIN || errno == EINTR ? NOTHING : -errno;
    if (keep(slot, reader->read, size, now_ns(CLOCK_MONOTONIC))) return -ENOMEM;
    return slot->state == NOTIFY_EACH_READ || may_end(reader->read, size) || slot->came > reader->longest ? DATA : NOTHING;
}

/* Read all that is left, before the socket is closed. */
void reader_read_rest(struct reader *reader, int descriptor) {
    int64_t before;
    do {
        before = reader->slots[descriptor].came;
        read_one(reader, descriptor);
    } while ((int64_t)reader->slots[descriptor].came > before);
}

/* Prefetch what the next read will write to: the processor has forgotten it since that stream's last token. */
static void prefetch(const struct reader *reader, int descriptor) {
    if (!reader->slots[descriptor].raw) return;
    const struct slot *slot = reader->slots + descriptor;
    for (int line = 0; line < 4; line++) __builtin_prefetch(slot->raw + slot->size + 64 * line, 1);
    __builtin_prefetch(slot->marks + slot->count, 1);
}

/* Read every readable socket once. Adds pairs of descriptor and notice; returns how many sockets were readable. */
static int read_all(struct reader *reader, int32_t notices[2 * MOST_EVENTS], int *count) {
    int ready = epoll_wait(reader->epoll, reader->events, MOST_EVENTS, 0);
    for (int each = 0; each < ready; each++) {
        int descriptor = reader->events[each].data.fd;
        if (each + 1 < ready) prefetch(reader, reader->events[each + 1].data.fd);
        int32_t notice = read_one(reader, descriptor);
        if (notice == NOTHING) continue;
        notices[2 * *count] = descriptor;
        notices[2 * (*count)++ + 1] = notice;
    }
    return ready > 0 ? ready : 0;
}

/* Read what has arrived. Fills `notices`; returns how many pairs. At a high rate without any notice, wait a moment and
 * read once more: the event loop's coming round costs as much as several reads. */
int reader_ready(struct reader *reader, int32_t notices[2 * MOST_EVENTS]) {
    const struct timespec pause = {0, PAUSE_NS};
    int count = 0;
    reader->reads += read_all(reader, notices, &count);
    if (reader->busy && !count) {
        clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
        reader->reads += read_all(reader, notices, &count);
    }
    int64_t now = now_ns(CLOCK_MONOTONIC), over = now - reader->since_ns;
    if (over >= RATE_OVER_NS) {
        reader->busy = reader->reads >= BUSY_READS_PER_S * (over / 1000000) / 1000; /* in ms: no idle time overflows */
        reader->since_ns = now;
        reader->reads = 0;
    }
    return count;
}

static int hex(unsigned char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    digit |= 0x20;
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* Return the code after `\u`; -1 unless these are four hexadecimal digits. */
static int code(const unsigned char *at, const unsigned char *end) {
    int code = 0;
    if (end - at < 4) return -1;
    for (int each = 0; each < 4; each++) {
        int digit = hex(at[each]);
        if (digit < 0) return -1;
        code = code * 16 + digit;
    }
    return code;
}

/* Find the quote that ends a JSON string whose first character is at `at`; NULL when the string is invalid or open. */
static const unsigned char *string_end(const unsigned char *at, const unsigned char *end) {
    for (; at < end && *at != '"'; at++) {
        if (*at < 0x20) return NULL;
        if (*at != '\\') continue;
        if (++at == end) return NULL;
        if (*at == 'u') {
            int first = code(at + 1, end);
            if (first < 0 || (first >= 0xDC00 && first < 0xE000)) return NULL;
            at += 4;
            if (first < 0xD800 || first >= 0xE000) continue;
            if (end - at < 3 || at[1] != '\\' || at[2] != 'u') return NULL;
            int second = code(at + 3, end);
            if (second < 0xDC00 || second >= 0xE000) return NULL;
            at += 6;
        } else if (!memchr("\"\\/bfnrt", *at, 8)) {
            return NULL;
        }
    }
    return at < end ? at : NULL;
}

/* Find the end of the chunk whose size line is at `*at`; `*at` moves to its first byte. NULL unless it is complete. */
static const unsigned char *chunk_end(const unsigned char **at, const unsigned char *end) {
    const unsigned char *here = *at;
    int64_t size = 0;
    int digit;
    for (int digits = 0; here < end && (digit = hex(*here)) >= 0; here++, digits++) {
        if (digits == 8) return NULL;
        size = size * 16 + digit;
    }
    if (here == *at || end - here < 2 || here[0] != '\r' || here[1] != '\n') return NULL;
    *at = here += 2;
    if (size == 0 || end - here < size + 2 || here[size] != '\r' || here[size + 1] != '\n') return NULL;
    return here + size;
}

/* Skip the events that come next and consist of `before`, a text of their own and `after`, each in its own chunk where
 * the body is in chunks. `place` holds the offset of the first event, the index of a mark no later than it, and the
 * offset at which that mark's read begins; it is moved behind the last skipped event. Returns the number of events.
 * `output_ns` gets the instant of each event with a text: that of the read that brought its last byte. `texts`, with
 * room for all that is left, gets each text followed by a line feed. */
int64_t skip_run(const unsigned char *raw, int64_t size, int chunked, const unsigned char *before, int64_t before_size,
            const unsigned char *after, int64_t after_size, const int64_t *marks, int64_t count, int64_t place[3],
            int64_t *output_ns, int64_t *outputs, unsigned char *texts, int64_t *texts_size) {
    const unsigned char *end = raw + size, *at = raw + place[0];
    int64_t mark = place[1], begin = place[2], events = 0;
    for (*outputs = *texts_size = 0;; events++) {
        const unsigned char *text = at, *last = end;
        if (chunked && !(last = chunk_end(&text, end))) break;
        if (last - text < before_size || memcmp(text, before, before_size)) break;
        text += before_size;
        const unsigned char *quote = string_end(text, last);
        if (!quote || last - quote < after_size || memcmp(quote, after, after_size)) break;
        if (chunked && quote + after_size != last) break;
        last = quote + after_size;
        at = chunked ? last + 2 : last;
        while (mark < count && begin + marks[2 * mark + 1] < last - raw) begin += marks[2 * mark++ + 1];
        if (mark == count) break;
        if (quote > text) output_ns[(*outputs)++] = marks[2 * mark];
        memcpy(texts + *texts_size, text, quote - text);
        texts[*texts_size += quote - text] = '\n';
        ++*texts_size;
        place[0] = at - raw;
        place[1] = mark;
        place[2] = begin;
    }
    return events;
}
