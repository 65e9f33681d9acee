/* What is done for every token of a stream: reading it while a stage runs, and passing over it when an answer is read.
 *
 * Both are done in Python too, by `flowing` and `raw_body`, wherever this was not compiled; what they say of a stream
 * is the same. Knows nothing of Python: `native.py` calls it with addresses and numbers. Nothing here frees or keeps
 * what it was lent. What a server sent is only ever copied and compared, by lengths that were counted here.
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

enum { READ_BYTES = 1 << 14, MOST_EVENTS = 1024, LEAST_ROOM = 1 << 12, KEPT_ROOM = 1 << 17, KEPT_PLACES = 1 << 14 };
#define NS INT64_C(1000000000)
enum { LOOK = 0, CLOSED = INT32_MIN }; /* told of a descriptor; else the events it was seen with, or -errno */
enum { OFF, WARY, TRUSTED };           /* what is read of a descriptor: nothing, or with every read told of, or not */

/* An answer under way: its bytes one after the other, and of each read its instant and how many they were. */
struct flow {
    int on;
    char *raw;
    size_t size, room, came; /* came: in all, what was taken too */
    int64_t *marks;
    size_t count, places;
};

struct flows {
    int epoll, known; /* how many descriptors there is a place for */
    size_t longest;   /* bytes of one stream: a longer one is looked at */
    struct flow *of;
    struct epoll_event seen[MOST_EVENTS];
    char read[READ_BYTES];
};

/* Which source this was made of, so that nothing older is taken for it. */
uint32_t source(void) { return SOURCE; }

struct flows *flows_new(int epoll, size_t longest) {
    struct flows *flows = calloc(1, sizeof *flows);
    if (flows) {
        flows->epoll = epoll;
        flows->longest = longest;
    }
    return flows;
}

void flows_free(struct flows *flows) {
    for (int each = 0; each < flows->known; each++) {
        free(flows->of[each].raw);
        free(flows->of[each].marks);
    }
    free(flows->of);
    free(flows);
}

/* Read this descriptor from now on, every read to be looked at. 0, or -1 when there is no memory for it. */
int flows_add(struct flows *flows, int descriptor) {
    if (descriptor < 0) return -1;
    if (descriptor >= flows->known) {
        int known = descriptor + 64;
        struct flow *of = realloc(flows->of, known * sizeof *of);
        if (!of) return -1;
        memset(of + flows->known, 0, (known - flows->known) * sizeof *of);
        flows->of = of;
        flows->known = known;
    }
    flows->of[descriptor].on = WARY;
    flows->of[descriptor].came = 0;
    return 0;
}

/* It is in full flow: only what may be its end is to be looked at. */
void flows_trust(struct flows *flows, int descriptor) { flows->of[descriptor].on = TRUSTED; }

/* What came of it since the last time: addresses and sizes, good until the next call. Gives back whether anything did. */
int flows_take(struct flows *flows, int descriptor, int64_t taken[4]) {
    struct flow *flow = flows->of + descriptor;
    taken[0] = (intptr_t)flow->raw;
    taken[1] = flow->size;
    taken[2] = (intptr_t)flow->marks;
    taken[3] = flow->count;
    flow->size = flow->count = 0;
    return taken[1] > 0;
}

/* Read it no more. What came and was not taken is lost. */
void flows_drop(struct flows *flows, int descriptor) {
    struct flow *flow = flows->of + descriptor;
    flow->on = OFF;
    flow->size = flow->count = 0;
    if (flow->room > KEPT_ROOM) {
        free(flow->raw);
        flow->raw = NULL;
        flow->room = 0;
    }
    if (flow->places > KEPT_PLACES) {
        free(flow->marks);
        flow->marks = NULL;
        flow->places = 0;
    }
}

static int keep(struct flow *flow, const char *data, size_t size, int64_t now_ns) {
    if (flow->room - flow->size < size) {
        size_t room = flow->room ? flow->room : LEAST_ROOM;
        while (room - flow->size < size) room *= 2;
        char *raw = realloc(flow->raw, room);
        if (!raw) return -1;
        flow->raw = raw;
        flow->room = room;
    }
    if (flow->places - flow->count < 2) {
        size_t places = flow->places ? flow->places * 2 : 256;
        int64_t *marks = realloc(flow->marks, places * sizeof *marks);
        if (!marks) return -1;
        flow->marks = marks;
        flow->places = places;
    }
    memcpy(flow->raw + flow->size, data, size);
    flow->size += size;
    flow->came += size;
    flow->marks[flow->count++] = now_ns;
    flow->marks[flow->count++] = size;
    return 0;
}

static int ends_with(const char *data, size_t size, const char *end, size_t length) {
    return size >= length && !memcmp(data + size - length, end, length);
}
#define ENDS_WITH(data, size, end) ends_with(data, size, end, sizeof(end) - 1)

/* Whether the last chunk is in it. Every read is asked, so only what follows a carriage return is looked at. */
static int holds_last_chunk(const char *data, size_t size) {
    static const char last[] = "\r\n0\r\n\r\n";
    const char *at = data, *end = data + size;
    if (size >= sizeof last - 3 && !memcmp(data, last + 2, sizeof last - 3)) return 1;
    for (; (at = memchr(at, '\r', end - at)) && (size_t)(end - at) >= sizeof last - 1; at++)
        if (!memcmp(at, last, sizeof last - 1)) return 1;
    return 0;
}

/* Whether a read may hold the end of a response in chunks: as `may_end` of `exchange` has it. */
int may_end(const char *data, size_t size) {
    if (holds_last_chunk(data, size)) return 1;
    if (ENDS_WITH(data, size, "}\n\n\r\n")) return 0;
    return size < 16 || ENDS_WITH(data, size, "\r\n\r\n") || ENDS_WITH(data, size, "[DONE]\n\n\r\n") ||
           ENDS_WITH(data, size, "[DONE]\n\n");
}

/* What is to be done about a descriptor that has something, where it is read here: a number as `told` has it, or 1 for nothing. */
static int32_t read_one(struct flows *flows, int descriptor) {
    struct flow *flow = flows->of + descriptor;
    ssize_t size = recv(descriptor, flows->read, READ_BYTES, MSG_DONTWAIT);
    if (size == 0) return CLOSED;
    if (size < 0) return errno == EAGAIN || errno == EINTR ? 1 : -errno;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (keep(flow, flows->read, size, now.tv_sec * NS + now.tv_nsec)) return -ENOMEM;
    return flow->on == WARY || may_end(flows->read, size) || flow->came > flows->longest ? LOOK : 1;
}

/* Have the processor fetch what a read of this one will write to: it has forgotten that since the stream's last token. */
static void expect(const struct flows *flows, int descriptor) {
    if (descriptor >= flows->known || !flows->of[descriptor].raw) return;
    const struct flow *flow = flows->of + descriptor;
    for (int line = 0; line < 4; line++) __builtin_prefetch(flow->raw + flow->size + 64 * line, 1);
    __builtin_prefetch(flow->marks + flow->count, 1);
}

/* Read everything that is read here and has something, once. Gives back how many descriptors had; `told` gets pairs of
 * a descriptor and what else is to be done about it, `count` how many pairs. */
static int look(struct flows *flows, int32_t told[2 * MOST_EVENTS], int32_t *count) {
    int seen = epoll_wait(flows->epoll, flows->seen, MOST_EVENTS, 0);
    *count = 0;
    for (int each = 0; each < seen; each++) {
        int descriptor = flows->seen[each].data.fd;
        int32_t what = flows->seen[each].events;
        int here = descriptor < flows->known && flows->of[descriptor].on != OFF;
        if (each + 1 < seen) expect(flows, flows->seen[each + 1].data.fd);
        if (here && what == EPOLLIN && (what = read_one(flows, descriptor)) == 1) continue;
        told[2 * *count] = descriptor;
        told[2 * (*count)++ + 1] = what;
    }
    return seen < 0 ? 0 : seen;
}

/* The same; or after so many gathers of so long, each with a look after it, until there is something to be told. */
int flows_look(struct flows *flows, int32_t told[2 * MOST_EVENTS], int32_t *count, int gathers, int64_t gather_ns) {
    struct timespec gather = {gather_ns / NS, gather_ns % NS};
    if (!gathers) return look(flows, told, count);
    int seen = 0;
    do {
        clock_nanosleep(CLOCK_MONOTONIC, 0, &gather, NULL);
        seen += look(flows, told, count);
    } while (--gathers && !*count);
    return seen;
}

static int hex(unsigned char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    digit |= 0x20;
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* The code after `\u`; -1 when these are no four digits. */
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

/* The quote that ends a JSON string whose first character is at `at`; NULL when it is none, or not there. */
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

/* Where the chunk ends whose size is told at `*at`, which goes to its first byte; NULL when it is not there as a whole. */
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

/* Pass over the events that come next and are `before`, a text of their own and `after`, each in its own chunk where
 * the body is in chunks. `place` says where they begin, a mark no later than the first of them, and where what that
 * marks begins; then the same of what follows. Gives back how many events there were; `output_ns` gets the instant of
 * each that has a text, which is that of the read that brought its last byte. `texts`, which has room for all that is
 * left, gets each text with a line feed after it. */
int64_t run(const unsigned char *raw, int64_t size, int chunked, const unsigned char *before, int64_t before_size,
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
