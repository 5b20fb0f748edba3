/* SHA-256 (FIPS 180-4) of several messages at once: two by the processor's SHA instructions, or one in each lane
   of its vectors.

   A single message cannot be hashed in parallel, because each block needs the state after the one before. Without
   SHA instructions this costs about ten cycles per byte; in lanes, each step works on 16, 8 or 4 messages. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 64

struct stream {
    uint32_t state[8];
    uint64_t total; /* bytes so far */
    uint8_t rest[BLOCK]; /* those after the last whole block */
};

struct job {
    uint32_t *state;
    const uint8_t *data;
    size_t blocks;
};

static const uint32_t START[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

#if defined __x86_64__
#include "sha256_instructions.h"
#else
static int has_instructions(void) { return 0; }
#endif

static int instructions = -1; /* whether they are used; -1: nobody has asked yet */

/* Return whether SHA instructions are used: where they exist and are allowed. */
int sha256_instructions(int allowed) { return instructions = allowed && has_instructions(); }

static int use_instructions(void) { return instructions < 0 ? sha256_instructions(1) : instructions; }

#if defined LEVEL_avx512
#define MOST 16
#define LANES 16
#include "sha256_lanes.h"
#define LANES 8
#include "sha256_lanes.h"
#elif defined LEVEL_avx2
#define MOST 8
#define LANES 8
#include "sha256_lanes.h"
#else
#define MOST 4
#define LANES 4
#include "sha256_lanes.h"
#endif

#if MOST >= 8
#define AHEAD 8
#define SCHEDULE schedule_8
#else
#define AHEAD 4
#define SCHEDULE schedule_4
#endif
#define TURN(x, n) ((x) >> (n) | (x) << (32 - (n)))

/* Add blocks to one state, several schedules at a time: faster than in lanes of which only one has a message. */
static void add_blocks_1(uint32_t *state, const uint8_t *data, size_t blocks) {
    uint32_t s[8], w[64][AHEAD];
    uint8_t last[BLOCK * AHEAD] = {0};
    memcpy(s, state, sizeof s);
    for (size_t done = 0; done < blocks; done++) {
        size_t lane = done % AHEAD, left = blocks - done;
        if (lane == 0 && left >= AHEAD)
            SCHEDULE(w, data + BLOCK * done);
        else if (lane == 0) {
            memcpy(last, data + BLOCK * done, BLOCK * left);
            SCHEDULE(w, last);
        }
        uint32_t a = s[0], b = s[1], c = s[2], d = s[3], e = s[4], f = s[5], g = s[6], h = s[7];
#pragma GCC unroll 64
        for (int t = 0; t < 64; t++) {
            uint32_t one = h + (TURN(e, 6) ^ TURN(e, 11) ^ TURN(e, 25)) + (g ^ (e & (f ^ g))) + w[t][lane];
            uint32_t two = (TURN(a, 2) ^ TURN(a, 13) ^ TURN(a, 22)) + ((a & b) | (c & (a | b)));
            h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
        }
        s[0] += a, s[1] += b, s[2] += c, s[3] += d, s[4] += e, s[5] += f, s[6] += g, s[7] += h;
    }
    memcpy(state, s, sizeof s);
}

/* Add the same number of blocks to each of these states. */
static void add_blocks(const struct job *jobs, size_t count, size_t blocks) {
    uint32_t *states[MOST];
    const uint8_t *data[MOST];
    uint32_t unused[8];
    memcpy(unused, START, sizeof unused);
    for (size_t lane = 0; lane < MOST; lane++) { /* lanes without a message repeat the first one */
        states[lane] = lane < count ? jobs[lane].state : unused;
        data[lane] = jobs[lane < count ? lane : 0].data;
    }
#if defined __x86_64__
    if (use_instructions()) {
        (count == 1 ? add_to_one : add_to_two)(states, data, blocks);
        return;
    }
#endif
    if (count == 1) {
        add_blocks_1(jobs->state, jobs->data, blocks);
        return;
    }
#if defined LEVEL_avx512
    if (count > 8)
        add_blocks_16(states, data, blocks);
    else
        add_blocks_8(states, data, blocks);
#elif defined LEVEL_avx2
    add_blocks_8(states, data, blocks);
#else
    add_blocks_4(states, data, blocks);
#endif
}

/* How many jobs to do at once. A block takes 16 lanes 3/2 of the time that it takes 8, and the end of the longest
   job is done alone, in about the same time. */
static size_t lanes_for(const struct job *jobs, size_t count) {
    size_t total = 0, longest = 0;
    if (use_instructions())
        return 2;
    for (size_t i = 0; i < count; i++) {
        total += jobs[i].blocks;
        longest = jobs[i].blocks > longest ? jobs[i].blocks : longest;
    }
    size_t eighth = total / 8, sixteenth = total / 16;
    size_t in_8 = 2 * (longest > eighth ? longest : eighth);
    size_t in_16 = 3 * sixteenth + 2 * (longest > sixteenth ? longest - sixteenth : 0);
    return MOST < 8 || in_16 < in_8 + in_8 / 8 ? MOST : 8; /* near a tie, jobs fill 16 lanes more evenly */
}

/* Do all jobs, as many at once as there are lanes; the next one takes the lane of one that is done. */
static void do_jobs(const struct job *jobs, size_t count) {
    struct job active[MOST];
    size_t used = 0, next = 0, lanes = lanes_for(jobs, count);
    for (;;) {
        for (; used < lanes && next < count; next++)
            if (jobs[next].blocks)
                active[used++] = jobs[next];
        if (!used)
            return;
        size_t blocks = active[0].blocks;
        for (size_t lane = 1; lane < used; lane++)
            if (active[lane].blocks < blocks)
                blocks = active[lane].blocks;
        add_blocks(active, used, blocks);
        size_t left = 0;
        for (size_t lane = 0; lane < used; lane++) {
            active[lane].data += BLOCK * blocks;
            active[lane].blocks -= blocks;
            if (active[lane].blocks)
                active[left++] = active[lane];
        }
        used = left;
    }
}

size_t sha256_stream_size(void) { return sizeof(struct stream); }

/* How many messages must come together so that this is faster than one after the other; 0: it never is. */
size_t sha256_worthwhile(void) {
    if (use_instructions() || MOST == 16)
        return 2;
    return MOST == 8 ? 4 : 0;
}

void sha256_begin(struct stream *streams, size_t count) {
    for (size_t i = 0; i < count; i++) {
        memcpy(streams[i].state, START, sizeof START);
        streams[i].total = 0;
    }
}

/* Add data to each message. Lengths may differ; the longest should come first, so that lanes are well used. */
void sha256_update(struct stream *streams, const uint8_t *const *data, const uint64_t *lengths, size_t count) {
    enum { GROUP = 256 };
    struct job jobs[GROUP];
    size_t taken[GROUP];
    for (; count > GROUP; count -= GROUP, streams += GROUP, data += GROUP, lengths += GROUP)
        sha256_update(streams, data, lengths, GROUP);
    for (size_t i = 0; i < count; i++) { /* first fill up what is left of the data before */
        struct stream *s = streams + i;
        size_t before = s->total % BLOCK, missing = before ? BLOCK - before : 0;
        taken[i] = lengths[i] < missing ? lengths[i] : missing;
        if (taken[i])
            memcpy(s->rest + before, data[i], taken[i]);
        jobs[i] = (struct job){s->state, s->rest, before && taken[i] == missing};
    }
    do_jobs(jobs, count);
    for (size_t i = 0; i < count; i++)
        jobs[i] = (struct job){streams[i].state, data[i] + taken[i], (lengths[i] - taken[i]) / BLOCK};
    do_jobs(jobs, count);
    for (size_t i = 0; i < count; i++) {
        size_t rest = (lengths[i] - taken[i]) % BLOCK;
        if (rest)
            memcpy(streams[i].rest, data[i] + lengths[i] - rest, rest);
        streams[i].total += lengths[i];
    }
}

static void put_big_endian(uint8_t *to, uint64_t number, int bytes) {
    for (int i = bytes - 1; i >= 0; i--, number >>= 8)
        to[i] = (uint8_t)number;
}

/* Write the 32 bytes of each digest. */
void sha256_end(struct stream *streams, size_t count, uint8_t *digests) {
    enum { GROUP = 16 };
    struct job jobs[GROUP];
    uint8_t ends[GROUP][2 * BLOCK];
    for (; count > GROUP; count -= GROUP, streams += GROUP, digests += 32 * GROUP)
        sha256_end(streams, GROUP, digests);
    memset(ends, 0, sizeof ends);
    for (size_t i = 0; i < count; i++) { /* a one, zeros, and the number of bits */
        size_t rest = streams[i].total % BLOCK, blocks = rest + 9 > BLOCK ? 2 : 1;
        memcpy(ends[i], streams[i].rest, rest);
        ends[i][rest] = 0x80;
        put_big_endian(ends[i] + BLOCK * blocks - 8, 8 * streams[i].total, 8);
        jobs[i] = (struct job){streams[i].state, ends[i], blocks};
    }
    do_jobs(jobs, count);
    for (size_t i = 0; i < count; i++)
        for (size_t word = 0; word < 8; word++)
            put_big_endian(digests + 32 * i + 4 * word, streams[i].state[word], 4);
}
