/* test_codec.c - frames and their contents: what goes in comes out, what is wrong is refused.
 *
 * Refusals are tested on both sides. For encode, a good sample gets one field out of bounds.
 * For decode, the bad message is packed by protobuf-c itself, past our encoder.
 *
 * `test_codec --corpus DIR` writes the seeds of tests/fuzz/fuzz_frame instead. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "shm/proto/codec_priv.h"
#include "shm/proto/commd.pb-c.h"
#include "tests/lib/frames.h"
#include "tests/unit/shm/codec_samples.h"

static void make_header(uint8_t *frame, size_t payload)
{
    memcpy(frame, "cd", 2);
    frame[2] = CODEC_FORMAT;
    frame[3] = 0;
    for (int i = 0; i < 4; i++)
        frame[4 + i] = (uint8_t)(payload >> (8 * i));
}

/* Decodes @payload as the content of a frame. A success must be encodable again. */
static int decode_payload(const void *payload, size_t len)
{
    uint8_t *frame = malloc(CODEC_HEADER + len);
    struct msg msg;
    int r;

    make_header(frame, len);
    if (len)
        memcpy(frame + CODEC_HEADER, payload, len);
    memset(&msg, 0xee, sizeof(msg));
    r = codec_decode(frame, CODEC_HEADER + len, &msg);
    free(frame);
    if (r == CODEC_OK) {
        void *again = NULL;

        assert_int_equal(codec_encode(&msg, &again, &len), 0);
        free(again);
        msg_fini(&msg);
    } else {
        for (size_t i = 0; i < sizeof(msg); i++) /* nothing is written on failure */
            assert_int_equal(((uint8_t *)&msg)[i], 0xee);
    }
    return r;
}

static int decode_env(const Commd__Envelope *env)
{
    size_t len = protobuf_c_message_get_packed_size(&env->base);
    uint8_t *payload = malloc(len + 1);
    int r;

    protobuf_c_message_pack(&env->base, payload);
    r = decode_payload(payload, len);
    free(payload);
    return r;
}

static void encode_sample(enum msg_type type, enum sample sample, uint8_t **ret_frame,
                          size_t *ret_len)
{
    struct msg msg;
    void *frame;

    sample_make(type, sample, &msg);
    assert_int_equal(codec_encode(&msg, &frame, ret_len), 0);
    msg_fini(&msg);
    *ret_frame = frame;
}

/* ---- what goes in comes out ------------------------------------------------------------- */

static void round_trip(enum msg_type type, enum sample sample)
{
    struct msg msg, back;
    void *frame, *again;
    size_t len, len2, need;

    sample_make(type, sample, &msg);
    assert_int_equal(codec_encode(&msg, &frame, &len), 0);
    assert_int_equal(codec_frame_check(frame, len, CODEC_MAX_FRAME, &need), CODEC_OK);
    assert_int_equal(need, len);
    assert_int_equal(codec_decode(frame, len, &back), CODEC_OK);
    assert_true(sample_equal(&msg, &back));
    assert_int_equal(codec_encode(&back, &again, &len2), 0);
    assert_int_equal(len, len2);
    assert_memory_equal(frame, again, len);
    msg_fini(&msg);
    msg_fini(&back);
    assert_int_equal(back.type, MSG_NONE);
    msg_fini(&back); /* a cleared one is fine */
    free(frame);
    free(again);
}

static void every_type_round_trips(void **state)
{
    for (int i = 0; i < SAMPLE_TYPES; i++)
        for (int sample = 0; sample < SAMPLE_COUNT; sample++)
            round_trip(sample_types[i], sample);
}

static void every_field_is_listed(void **state)
{
    assert_null(sample_unlisted_field());
}

/* The names of the schema's fields that an entry of a list stands for. */
#define CLAIM_NUM(f)     " " #f " "
#define CLAIM_FLAG       CLAIM_NUM
#define CLAIM_CAUSE      CLAIM_NUM
#define CLAIM_RANK       CLAIM_NUM
#define CLAIM_RANKREF    CLAIM_NUM
#define CLAIM_NODE       CLAIM_NUM
#define CLAIM_NODEREF    CLAIM_NUM
#define CLAIM_GPU        CLAIM_NUM
#define CLAIM_GPUS       CLAIM_NUM
#define CLAIM_NAME       CLAIM_NUM
#define CLAIM_OPTNAME    CLAIM_NUM
#define CLAIM_TEXT       CLAIM_NUM
#define CLAIM_TOKEN      CLAIM_NUM
#define CLAIM_KEY        CLAIM_NUM
#define CLAIM_KEPT       CLAIM_NUM
#define CLAIM_ASKS       CLAIM_NUM
#define CLAIM_ADDR       CLAIM_NUM
#define CLAIM_NODES      CLAIM_NUM
#define CLAIM_TABLES     CLAIM_NUM
#define CLAIM_SORTED(f)  ""
#define CLAIM_RANKS      CLAIM_NUM
#define CLAIM_OWN        CLAIM_NUM
#define CLAIM_SEAT(f)    " " #f " size recovery "
#define CLAIM_MEMBERS(f) " member_node member_pid member_join member_was "
#define CLAIM_INDEXES(f) " peers rank_node clients "
#define CLAIM(kind, f)   CLAIM_##kind(f)

static void nothing_unclaimed(const ProtobufCMessageDescriptor *message, const char *claimed)
{
    for (unsigned i = 0; i < message->n_fields; i++) {
        char name[80];

        snprintf(name, sizeof name, " %s ", message->fields[i].name);
        if (!strstr(claimed, name))
            fail_msg("commd.proto has %s.%s, codec_priv.h has not", message->short_name, name);
    }
}

/* The other way round the compiler finds: an entry without a field in the schema. */
static void every_field_of_the_schema_is_listed(void **state)
{
#define CHECK_STRUCT(s, schema, constant)                                                          \
    nothing_unclaimed(&commd__##s##__descriptor, "" FIELDS_##s(CLAIM));
    CODEC_STRUCTS(CHECK_STRUCT)
#define CLAIM_BODY(name, field, s) " " #field " "
    nothing_unclaimed(&commd__envelope__descriptor, "" CODEC_TYPES(CLAIM_BODY));
}

static void client_frames_fit(void **state)
{
    static const enum msg_type types[] = {
        MSG_CLIENT_HELLO, MSG_CLIENT_JOIN,       MSG_CLIENT_LEAVE, MSG_CLIENT_ABORT,
        MSG_ADMIN,        MSG_CLIENT_ASK_ABSENT, MSG_ARENA_ADD,    MSG_ARENA_DEL,
        MSG_ARENA_ASK,    MSG_CLIENT_WITHDRAW};

    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        uint8_t *frame;
        size_t len, need;

        encode_sample(types[i], SAMPLE_LARGE, &frame, &len);
        assert_int_equal(codec_frame_check(frame, len, CODEC_MAX_CLIENT_FRAME, &need), CODEC_OK);
        free(frame);
    }
}

static void names(void **state)
{
    for (int i = 0; i < SAMPLE_TYPES; i++) {
        assert_string_not_equal(msg_type_name(sample_types[i]), "?");
        for (int k = 0; k < i; k++)
            assert_string_not_equal(msg_type_name(sample_types[i]), msg_type_name(sample_types[k]));
    }
    assert_string_equal(msg_type_name(MSG_CLIENT_JOIN), "CLIENT_JOIN");
    assert_string_equal(msg_type_name((enum msg_type)18), "?");
    assert_string_equal(cause_name(CAUSE_RANK_LOST), "rank lost");
    assert_string_equal(cause_name(CAUSE_LEFT), "left");
    assert_string_equal(cause_name(13), "?");
    assert_string_equal(cause_name(CAUSE_COUNT), "?");
    for (int r = CODEC_OK; r <= CODEC_E_NOMEM; r++)
        assert_string_not_equal(codec_strerror(r), "unknown error");
    assert_string_equal(codec_strerror(99), "unknown error");
}

/* ---- frames ------------------------------------------------------------------------------ */

static void truncated_at_every_byte(void **state)
{
    for (int i = 0; i < SAMPLE_TYPES; i++) {
        uint8_t *frame;
        size_t len;

        encode_sample(sample_types[i], SAMPLE_LARGE, &frame, &len);
        for (size_t cut = 0; cut < len; cut++) {
            size_t need = 0;
            uint8_t *part = malloc(cut + 1); /* exact, so that ASan sees a read beyond */
            struct msg msg;

            memcpy(part, frame, cut);
            part = realloc(part, MAX(cut, (size_t)1));
            assert_int_equal(codec_frame_check(part, cut, CODEC_MAX_FRAME, &need), CODEC_E_MORE);
            assert_int_equal(need, cut < CODEC_HEADER ? CODEC_HEADER : len);
            assert_int_equal(codec_decode(part, cut, &msg), CODEC_E_MORE);
            free(part);
            if (cut >= CODEC_HEADER) /* and with a header that fits the rest */
                assert_int_equal(decode_payload(frame + CODEC_HEADER, cut - CODEC_HEADER),
                                 CODEC_E_CONTENT);
        }
        free(frame);
    }
}

static int judge(const char *bytes, size_t len, size_t max, size_t *ret_need)
{
    uint8_t *frame = frame_bytes(bytes, len);
    int r = codec_frame_check(frame, len, max, ret_need);

    free(frame);
    return r;
}

static int decode_bytes(const char *bytes, size_t len)
{
    uint8_t *frame = frame_bytes(bytes, len);
    struct msg msg;
    int r = codec_decode(frame, len, &msg);

    free(frame);
    return r;
}

static void headers(void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
        int r;
    } cases[] = {
        {"", 0, CODEC_E_MORE},
        {"G", 1, CODEC_E_MAGIC},
        {"c", 1, CODEC_E_MORE},
        {"cG", 2, CODEC_E_MAGIC},
        {"cd", 2, CODEC_E_MORE},
        {"cd\0", 3, CODEC_E_MORE},
        {"cd\1", 3, CODEC_E_VERSION},
        {"cd\xff", 3, CODEC_E_VERSION}, /* the one before */
        {"cd\1\7", 4, CODEC_E_VERSION},
        {"cd\0\1", 4, CODEC_E_MAGIC},
        {"cd\0\0\xff\xff\xff", 7, CODEC_E_MORE},
        {"cd\0\0\xff\xff\xff\xff", 8, CODEC_E_TOO_LARGE},
        {"cd\0\0\x01\x00\x80\x00", 8, CODEC_E_TOO_LARGE}, /* 8 MiB and 1 */
        {"cd\0\0\x00\x00\x80\x00", 8, CODEC_E_MORE},
        {"GET / HTTP/1.1\r\n", 16, CODEC_E_MAGIC},
        {"\x16\x03\x01\x02\x00\x01\x00\x01", 8, CODEC_E_MAGIC}, /* a TLS client */
    };
    size_t need;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_int_equal(judge(cases[i].bytes, cases[i].len, CODEC_MAX_FRAME, &need), cases[i].r);
    /* The sender's own limit, to the byte. */
    assert_int_equal(judge("cd\0\0\0\0\1\0", 8, 65536, &need), CODEC_E_MORE);
    assert_int_equal(need, 65536 + CODEC_HEADER);
    assert_int_equal(judge("cd\0\0\1\0\1\0", 8, 65536, &need), CODEC_E_TOO_LARGE);
    /* Nothing but one whole frame is decoded. */
    assert_int_equal(decode_bytes("cd\0\0\0\0\0\0", 8), CODEC_E_CONTENT);
    assert_int_equal(decode_bytes("cd\0\0\2\0\0\0\x2a\0more", 14), CODEC_E_CONTENT);
}

static uint32_t random_next(uint32_t *seed)
{
    return *seed = *seed * 1664525u + 1013904223u;
}

static void garbage(void **state)
{
    uint32_t seed = 1;

    for (int round = 0; round < 20000; round++) {
        uint8_t payload[64];
        size_t len = random_next(&seed) >> 26;

        for (size_t i = 0; i < len; i++)
            payload[i] = (uint8_t)(random_next(&seed) >> 24);
        decode_payload(payload, len); /* any result, but a clean one */
    }
}

static void damaged_samples(void **state)
{
    uint32_t seed = 2;

    for (int i = 0; i < SAMPLE_TYPES; i++) {
        uint8_t *frame;
        size_t len;

        encode_sample(sample_types[i], SAMPLE_LARGE, &frame, &len);
        for (int round = 0; round < 500; round++) {
            size_t at = CODEC_HEADER + random_next(&seed) % (len - CODEC_HEADER);
            uint8_t was = frame[at];

            frame[at] ^= (uint8_t)(1u << (random_next(&seed) >> 29));
            decode_payload(frame + CODEC_HEADER, len - CODEC_HEADER);
            frame[at] = was;
        }
        free(frame);
    }
}

/* A newer minor version adds fields: they are skipped, in the envelope and within the body. */
static void unknown_fields_are_skipped(void **state)
{
    static const uint8_t in_body[] = {0x92, 0x03, 4, 0x08, 7, 0x78, 1}; /* ping, seq 7, field 15 */
    static const uint8_t in_envelope[] = {0x92, 0x03, 2, 0x08, 7, 0xd8, 0x3f, 1};

    assert_int_equal(decode_payload(in_body, sizeof(in_body)), CODEC_OK);
    assert_int_equal(decode_payload(in_envelope, sizeof(in_envelope)), CODEC_OK);
}

static void unknown_kinds_are_refused(void **state)
{
    static const uint8_t eighteen[] = {0x92, 0x01, 0}, high[] = {0xea, 0x04, 0},
                         varint[] = {0x28, 1}, group[] = {5 << 3 | 3},
                         huge[] = {0xfa, 0xff, 0xff, 0xff, 0x0f, 0};
    static const uint8_t two[] = {0x92, 0x03, 0, 0xaa, 0x01, 0}; /* ping, then heartbeat */

    assert_int_equal(decode_payload("", 0), CODEC_E_CONTENT);
    assert_int_equal(decode_payload(eighteen, sizeof(eighteen)), CODEC_E_CONTENT);
    assert_int_equal(decode_payload(high, sizeof(high)), CODEC_E_CONTENT);
    assert_int_equal(decode_payload(varint, sizeof(varint)), CODEC_E_CONTENT);
    assert_int_equal(decode_payload(group, sizeof(group)), CODEC_E_CONTENT);
    assert_int_equal(decode_payload(huge, sizeof(huge)), CODEC_E_CONTENT);
    assert_int_equal(decode_payload(huge, 1), CODEC_E_CONTENT);
    assert_int_equal(decode_payload(two, sizeof(two)), CODEC_E_CONTENT);
    assert_int_equal(decode_payload(two, 3), CODEC_OK);
}

/* ---- memory ------------------------------------------------------------------------------ */

static void small_kinds_stay_small(void **state)
{
    uint8_t *payload = calloc(1, CODEC_MAX_SMALL + 1);

    /* heartbeat, then an unknown field of the envelope that fills the rest */
    memcpy(payload, "\xaa\x01\x00\xda\x3f", 5);
    for (size_t len = CODEC_MAX_SMALL; len <= CODEC_MAX_SMALL + 1; len++) {
        payload[5] = (uint8_t)(0x80 | (len - 7));
        payload[6] = (uint8_t)((len - 7) >> 7);
        assert_int_equal(decode_payload(payload, len),
                         len == CODEC_MAX_SMALL ? CODEC_OK : CODEC_E_CONTENT);
    }
    free(payload);
}

/* 8 MiB of two-byte fields: protobuf-c would take 300 MiB to sort them. */
static void many_fields_hit_the_limit(void **state)
{
    size_t len = CODEC_MAX_FRAME, body = len - 5;
    uint8_t *payload = malloc(len);

    payload[0] = MSG_TABLES << 3 | 2;
    for (int i = 0; i < 4; i++)
        payload[1 + i] = (uint8_t)((body >> (7 * i) & 0x7f) | (i < 3 ? 0x80 : 0));
    for (size_t i = 5; i + 1 < len; i += 2) {
        payload[i] = 1 << 3; /* healthy = 1, again and again */
        payload[i + 1] = 1;
    }
    payload[len - 1] = 0;
    assert_int_equal(decode_payload(payload, len), CODEC_E_CONTENT);
    free(payload);
}

static void arena_keeps_its_limit(void **state)
{
    struct codec_arena arena;
    char *a, *b;

    arena_init(&arena, 100000);
    a = arena_alloc(&arena, 1);
    b = arena_alloc(&arena, 0);
    assert_int_equal(b - a, 16);
    assert_null(arena.blocks); /* still in the first buffer */
    assert_non_null(memset(arena_alloc(&arena, 90000), 1, 90000));
    assert_non_null(arena.blocks);
    assert_null(arena_alloc(&arena, 100001));
    assert_null(arena_alloc(&arena, SIZE_MAX));
    assert_null(arena_alloc(&arena, 10000));
    assert_non_null(memset(arena_alloc(&arena, 9936), 1, 9936));
    assert_false(arena.oom);
    arena_fini(&arena);
}

/* ---- bounds, encoding -------------------------------------------------------------------- */

#define BROKEN(type_, statement)                                                                   \
    {                                                                                              \
        struct msg msg;                                                                            \
        void *frame = NULL;                                                                        \
        size_t len;                                                                                \
                                                                                                   \
        sample_make(type_, SAMPLE_LARGE, &msg);                                                    \
        statement;                                                                                 \
        if (codec_encode(&msg, &frame, &len) != -EINVAL)                                           \
            fail_msg("encoded: %s", #statement);                                                   \
    }

/* Likewise for kinds with lists, whose pointers and counts @statement may change: what the
 * sample owns is freed through a copy. */
#define BROKEN_LIST(type_, statement)                                                              \
    {                                                                                              \
        struct msg msg, good;                                                                      \
        void *frame = NULL;                                                                        \
        size_t len;                                                                                \
                                                                                                   \
        sample_make(type_, SAMPLE_LARGE, &msg);                                                    \
        good = msg;                                                                                \
        statement;                                                                                 \
        if (codec_encode(&msg, &frame, &len) != -EINVAL)                                           \
            fail_msg("encoded: %s", #statement);                                                   \
        msg_fini(&good);                                                                           \
    }

static void encode_refuses_fields(void **state)
{
    BROKEN(MSG_NONE, (void)0);
    BROKEN((enum msg_type)18, (void)0);
    BROKEN_LIST(MSG_CLIENT_HELLO, msg.client_hello.admin = 2);
    BROKEN_LIST(MSG_CLIENT_HELLO, msg.client_hello.program[63] = 'x');
    BROKEN_LIST(MSG_CLIENT_HELLO, msg.client_hello.program[5] = '\n');
    BROKEN_LIST(MSG_CLIENT_JOIN, msg.client_join.name[0] = 0);
    BROKEN_LIST(MSG_CLIENT_JOIN, msg.client_join.name[255] = 'x');
    BROKEN_LIST(MSG_CLIENT_JOIN, msg.client_join.name[3] = '\x7f');
    BROKEN_LIST(MSG_CLIENT_JOIN, msg.client_join.size++);
    BROKEN_LIST(MSG_CLIENT_JOIN, msg.client_join.rank++);
    BROKEN_LIST(MSG_CLIENT_JOIN, msg.client_join.recovery = MSG_RECOVERY_COUNT);
    BROKEN_LIST(MSG_CLIENT_JOIN, msg.client_join.recovery = MSG_RECOVERY_WAIT);   /* of a rank */
    BROKEN_LIST(MSG_CLIENT_JOIN, msg.client_join.recovery = MSG_RECOVERY_SHRINK); /* likewise */
    BROKEN_LIST(MSG_CLIENT_JOIN, msg.client_join.recovery = msg.client_join.rank = 0;
                msg.client_join.size = 0);
    BROKEN(MSG_CLIENT_ABORT, msg.client_abort.text[511] = 'x');
    BROKEN(MSG_ADMIN, msg.admin.verb[0] = 0);
    BROKEN_LIST(MSG_WELCOME, msg.welcome.node[0] = 0);
    BROKEN_LIST(MSG_WELCOME, msg.welcome.cluster[1] = '\xff');
    BROKEN(MSG_JOIN_FAILED, msg.join_failed.cause = CAUSE_COUNT);
    BROKEN(MSG_JOIN_FAILED, msg.join_failed.rank = -2);
    BROKEN(MSG_JOIN_FAILED, msg.join_failed.rank = MSG_MAX_RANKS);
    BROKEN(MSG_ABSENT, msg.absent.rank = -2);
    BROKEN(MSG_ABSENT, msg.absent.node[1] = '\n');
    BROKEN(MSG_ABSENT_HERE, msg.absent_here.rank = MSG_MAX_RANKS);
    BROKEN(MSG_REFUSED, msg.refused.cause = CAUSE_COUNT);
    BROKEN(MSG_PEER_HELLO, msg.peer_hello.node[0] = '\t');
    BROKEN(MSG_ENGINE_STATE, msg.engine_state.addr_len = MSG_ADDR_MAX + 1);
    BROKEN(MSG_JOIN, msg.join.rank = msg.join.size);
    BROKEN(MSG_JOIN_REFUSED, msg.join_refused.rank = INT32_MIN);
    BROKEN(MSG_GONE, msg.gone.rank = MSG_MAX_RANKS);
    BROKEN(MSG_GONE, msg.gone.cause = CAUSE_COUNT);
    BROKEN(MSG_BROKEN, msg.broken.cause = UINT32_MAX);
    BROKEN(MSG_BROKEN, msg.broken.rank = INT32_MAX);
    BROKEN(MSG_ENGINE_HELLO, msg.engine_hello.addr_len = UINT32_MAX);
    BROKEN(MSG_ENGINE_HELLO, msg.engine_hello.resumed = 2);
    BROKEN(MSG_GPU_HELLO, msg.gpu_hello.resumed = 2);
    BROKEN(MSG_ENGINE_PEER_ADD, msg.engine_peer_add.peer = MSG_MAX_NODES);
    BROKEN(MSG_ENGINE_PEER_ADD, msg.engine_peer_add.node[0] = 0);
    BROKEN(MSG_ENGINE_PEER_DOWN, msg.engine_peer.peer = MSG_MAX_NODES);
    BROKEN(MSG_BOARD_DEL, msg.board.abort = 2);
    BROKEN(MSG_BOARD_ERROR, msg.board.cause = CAUSE_COUNT);
    BROKEN(MSG_BOARD_ERROR, msg.board.peer = -2);
    BROKEN(MSG_BOARD_ERROR, msg.board.peer = MSG_MAX_NODES);
    BROKEN(MSG_PING, msg.ping.pong = 2);
}

static void encode_refuses_lists(void **state)
{
    BROKEN_LIST(MSG_JOINED, msg.joined.size = 0);
    BROKEN_LIST(MSG_JOINED, msg.joined.size = MSG_MAX_RANKS + 1);
    BROKEN_LIST(MSG_JOINED, msg.joined.members = NULL);
    BROKEN_LIST(MSG_JOINED, msg.joined.nnodes = 0);
    BROKEN_LIST(MSG_JOINED, msg.joined.nnodes = MSG_MAX_NODES + 1);
    BROKEN_LIST(MSG_JOINED, msg.joined.nodes = NULL);
    BROKEN_LIST(MSG_JOINED, msg.joined.nodes[1][0] = 0);
    BROKEN_LIST(MSG_JOINED, msg.joined.members[2].node = msg.joined.nnodes);
    BROKEN_LIST(MSG_JOINED, for (int i = 0; i < 7; i++) msg.joined.members[i].node = 0);
    BROKEN_LIST(MSG_JOINED, msg.joined.rank = msg.joined.size);
    BROKEN_LIST(MSG_JOINED, msg.joined.members[1].was = MSG_MAX_RANKS + 1);
    BROKEN_LIST(MSG_JOINED, msg.joined.members[1].was = msg.joined.members[2].was);
    BROKEN_LIST(MSG_JOIN_NEWS, msg.join_news.ngone = MSG_MAX_RANKS + 1);
    BROKEN_LIST(MSG_JOIN_NEWS, msg.join_news.gone = NULL);
    BROKEN_LIST(MSG_JOIN_NEWS, msg.join_news.enough = 2);
    BROKEN_LIST(MSG_CLIENT_HELLO, msg.client_hello.nkept = MSG_MAX_KEPT + 1);
    BROKEN_LIST(MSG_CLIENT_HELLO, msg.client_hello.kept = NULL);
    BROKEN_LIST(MSG_CLIENT_HELLO, msg.client_hello.nasks = MSG_MAX_ASKS + 1);
    BROKEN_LIST(MSG_CLIENT_HELLO, msg.client_hello.asks = NULL);
    BROKEN_LIST(MSG_WELCOME, msg.welcome.nkept = MSG_MAX_KEPT + 1);
    BROKEN_LIST(MSG_WELCOME, msg.welcome.resumed = 2);
    BROKEN_LIST(MSG_COMMIT, msg.commit.nodes[2][0] = msg.commit.nodes[2][62] = 0);
    BROKEN_LIST(MSG_COMMIT, memcpy(msg.commit.nodes[1], msg.commit.nodes[0], MSG_NAME_MAX));
    BROKEN_LIST(MSG_COMMIT, msg.commit.nodes[0][0] = 'z');
    BROKEN_LIST(MSG_COMMIT, msg.commit.members[0].node = UINT32_MAX);
    BROKEN_LIST(MSG_COMMIT, msg.commit.home[0] = 0);
    BROKEN_LIST(MSG_BOARD_ADD, msg.board_add.me = msg.board_add.nnodes);
    BROKEN_LIST(MSG_BOARD_ADD, msg.board_add.nnodes = 0);
    BROKEN_LIST(MSG_BOARD_ADD, msg.board_add.nnodes = MSG_MAX_NODES + 1);
    BROKEN_LIST(MSG_BOARD_ADD, msg.board_add.peers = NULL);
    BROKEN_LIST(MSG_BOARD_ADD, msg.board_add.peers[1] = MSG_MAX_NODES);
    BROKEN_LIST(MSG_BOARD_ADD, msg.board_add.peers[1] = msg.board_add.peers[0]);
    BROKEN_LIST(MSG_BOARD_ADD, msg.board_add.world = 0);
    BROKEN_LIST(MSG_BOARD_ADD, msg.board_add.world = MSG_MAX_RANKS + 1);
    BROKEN_LIST(MSG_BOARD_ADD, msg.board_add.rank_node = NULL);
    BROKEN_LIST(MSG_BOARD_ADD, msg.board_add.nclients = msg.board_add.world + 1);
    BROKEN_LIST(MSG_BOARD_ADD, (msg.board_add.nclients = 1, msg.board_add.clients = NULL));
    BROKEN_LIST(MSG_BOARD_ADD, msg.board_add.rank_node[6] = msg.board_add.nnodes);
    BROKEN_LIST(MSG_TABLES, msg.tables.healthy = 2);
    BROKEN_LIST(MSG_TABLES, msg.tables.ntables = CODEC_MAX_TABLES + 1);
    BROKEN_LIST(MSG_TABLES, msg.tables.tables = NULL);
}

static void encode_refuses_tables(void **state)
{
#define T msg.tables.tables[0]
/* Checks by itself and puts the table back; then as good as any bad message to BROKEN_LIST. */
#define BROKEN_TABLE(statement)                                                                    \
    BROKEN_LIST(MSG_TABLES, struct msg_table t = T; char *cell = T.cells[1]; statement;            \
                if (codec_encode(&msg, &frame, &len) != -EINVAL)                                   \
                    fail_msg("encoded: %s", #statement);                                           \
                t.cells[1] = cell; T = t; msg.type = MSG_NONE)

    BROKEN_TABLE(T.name[0] = 0);
    BROKEN_TABLE(T.name[0] = 'X');
    BROKEN_TABLE(T.ncolumns = 0);
    BROKEN_TABLE(T.ncolumns = CODEC_MAX_COLUMNS + 1);
    BROKEN_TABLE(T.columns = NULL);
    BROKEN_TABLE(T.cells = NULL);
    BROKEN_TABLE(T.columns[0].key[0] = '"');
    BROKEN_TABLE(T.columns[0].title[0] = 0);
    BROKEN_TABLE(T.columns[0].type = MSG_CELL_BOOL + 1);
    BROKEN_TABLE(T.nrows = MSG_MAX_CELLS / 5 + 1);
    BROKEN_TABLE(T.nrows = UINT32_MAX);
    BROKEN_TABLE(T.cells[1] = "-");
    BROKEN_TABLE(T.cells[1] = "01");
    BROKEN_TABLE(T.cells[1] = "1.");
    BROKEN_TABLE(T.cells[1] = "1e");
    BROKEN_TABLE(T.cells[1] = "0x1");
    BROKEN_TABLE(T.cells[1] = "nan");
    BROKEN_TABLE(T.columns[1].type = MSG_CELL_BOOL);
#undef T
}

static void text_is_cleaned_when_encoded(void **state)
{
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"plain", "plain"},
        {"two\nlines\x1b[31m", "two?lines?[31m"},
        {"gr\xc3\xbcn \xe2\x82\xac \xf0\x9f\x98\x80", "gr\xc3\xbcn \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"cut \xe2\x82", "cut ??"},
        {"latin1 \xfc.", "latin1 ?."},
        {"overlong \xc0\xaf", "overlong ??"},
        {"surrogate \xed\xa0\x80", "surrogate ???"},
        {"c1 \xc2\x9b", "c1 ??"},
        {"beyond \xf4\x90\x80\x80 \xf8\x88", "beyond ???? ??"},
        {"\x7f\x80", "??"},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct msg msg = {.type = MSG_CLIENT_ABORT}, back;
        void *frame;
        size_t len;

        strcpy(msg.client_abort.text, cases[i].in);
        assert_int_equal(codec_encode(&msg, &frame, &len), 0);
        assert_int_equal(codec_decode(frame, len, &back), CODEC_OK);
        assert_string_equal(back.client_abort.text, cases[i].out);
        free(frame);
    }
}

/* ---- bounds, decoding -------------------------------------------------------------------- */

/* A generated body of kind @field, good as it is, after @statement on it (`b`). */
#define DECODED(field_, Type, INIT_, NAME_, statement, result)                                     \
    {                                                                                              \
        Commd__Envelope env = COMMD__ENVELOPE__INIT;                                               \
        Commd__##Type b = COMMD__##INIT_##__INIT;                                                  \
                                                                                                   \
        env.body_case = COMMD__ENVELOPE__BODY_##NAME_;                                             \
        env.field_ = &b;                                                                           \
        statement;                                                                                 \
        if (decode_env(&env) != (result))                                                          \
            fail_msg("%s: %s", #field_, #statement);                                               \
    }
#define BYTES(s) ((ProtobufCBinaryData){sizeof(s) - 1, (uint8_t *)(s)})

static void decode_refuses_strings(void **state)
{
    char x[MSG_TEXT_MAX + 1];
    memset(x, 'x', sizeof(x));
#define HELLO(value, result)                                                                       \
    DECODED(client_hello, ClientHello, CLIENT_HELLO, CLIENT_HELLO, b.program = (value), result)
#define XS(n) ((ProtobufCBinaryData){(n), (uint8_t *)x})
    HELLO(BYTES(""), CODEC_OK);
    HELLO(BYTES("a b"), CODEC_OK);
    HELLO(XS(MSG_NAME_MAX - 1), CODEC_OK);
    HELLO(XS(MSG_NAME_MAX), CODEC_E_CONTENT);
    HELLO(BYTES("a\0b"), CODEC_E_CONTENT);
    HELLO(BYTES("\0"), CODEC_E_CONTENT);
    HELLO(BYTES("a\n"), CODEC_E_CONTENT);
    HELLO(BYTES("a\x1b[2J"), CODEC_E_CONTENT);
    HELLO(BYTES("\xff"), CODEC_E_CONTENT);
#define RESUME(value, result)                                                                      \
    DECODED(client_hello, ClientHello, CLIENT_HELLO, CLIENT_HELLO, b.resume = (value), result)
    RESUME(XS(MSG_KEY), CODEC_OK);
    RESUME(XS(MSG_KEY - 1), CODEC_E_CONTENT);
    RESUME(XS(MSG_KEY + 1), CODEC_E_CONTENT);
#define ADMIN_(value, result) DECODED(admin, Admin, ADMIN, ADMIN, b.verb = (value), result)
    ADMIN_(BYTES("status"), CODEC_OK);
    ADMIN_(BYTES(""), CODEC_E_CONTENT);
#define ABORT_(value, result)                                                                      \
    DECODED(client_abort, ClientAbort, CLIENT_ABORT, CLIENT_ABORT, b.text = (value), result)
    ABORT_(XS(MSG_TEXT_MAX - 1), CODEC_OK);
    ABORT_(XS(MSG_TEXT_MAX), CODEC_E_CONTENT);
    ABORT_(BYTES("a\nb"), CODEC_E_CONTENT);
    ABORT_(BYTES("a\0"), CODEC_E_CONTENT);
    ABORT_(BYTES("\xc3"), CODEC_E_CONTENT);
}

static void decode_refuses_numbers(void **state)
{
#define JOIN_(statement, result)                                                                   \
    DECODED(client_join, ClientJoin, CLIENT_JOIN, CLIENT_JOIN, b.name = BYTES("g");                \
            statement, result)
    JOIN_((b.rank = 1, b.size = 2), CODEC_OK);
    JOIN_((b.rank = 2, b.size = 2), CODEC_E_CONTENT);
    JOIN_((b.rank = 0, b.size = 0), CODEC_E_CONTENT);
    JOIN_((b.rank = 0, b.size = MSG_MAX_RANKS), CODEC_OK);
    JOIN_((b.rank = 0, b.size = MSG_MAX_RANKS + 1), CODEC_E_CONTENT);
    JOIN_((b.recovery = MSG_RECOVERY_SHRINK, b.size = 1), CODEC_OK);
    JOIN_((b.recovery = MSG_RECOVERY_SHRINK, b.size = 2), CODEC_E_CONTENT);
    JOIN_((b.recovery = MSG_RECOVERY_SHRINK, b.size = 0), CODEC_E_CONTENT);
    JOIN_((b.recovery = MSG_RECOVERY_WAIT, b.size = 0), CODEC_OK);
    JOIN_((b.recovery = MSG_RECOVERY_WAIT, b.size = 4), CODEC_OK);
    JOIN_((b.recovery = MSG_RECOVERY_WAIT, b.rank = 1, b.size = 4), CODEC_E_CONTENT);
    JOIN_((b.recovery = MSG_RECOVERY_WAIT, b.size = MSG_MAX_RANKS + 1), CODEC_E_CONTENT);
    JOIN_((b.recovery = MSG_RECOVERY_REJOIN, b.rank = MSG_ANY_SEAT), CODEC_OK);
    JOIN_((b.recovery = MSG_RECOVERY_REJOIN, b.rank = MSG_MAX_RANKS - 1), CODEC_OK);
    JOIN_((b.recovery = MSG_RECOVERY_REJOIN, b.rank = MSG_MAX_RANKS), CODEC_E_CONTENT);
    JOIN_((b.recovery = MSG_RECOVERY_REJOIN, b.rank = 4, b.size = 4), CODEC_E_CONTENT);
    JOIN_((b.recovery = MSG_RECOVERY_COUNT, b.rank = 1, b.size = 2), CODEC_E_CONTENT);
    JOIN_((b.recovery = UINT32_MAX, b.rank = 1, b.size = 2), CODEC_E_CONTENT);
#define BROKEN_(statement, result) DECODED(broken, Broken, BROKEN, BROKEN, statement, result)
    BROKEN_((b.cause = CAUSE_LEFT, b.rank = -1), CODEC_OK);
    BROKEN_(b.cause = CAUSE_COUNT, CODEC_E_CONTENT);
    BROKEN_(b.rank = -2, CODEC_E_CONTENT);
    BROKEN_(b.rank = MSG_MAX_RANKS, CODEC_E_CONTENT);
    DECODED(gone, Gone, GONE, GONE, b.rank = MSG_MAX_RANKS, CODEC_E_CONTENT);
    DECODED(gpu_hello, GpuHello, GPU_HELLO, GPU_HELLO, b.devices = MSG_MAX_GPUS, CODEC_OK);
    DECODED(gpu_hello, GpuHello, GPU_HELLO, GPU_HELLO, b.devices = MSG_MAX_GPUS + 1,
            CODEC_E_CONTENT);
    DECODED(gpu_device, GpuDevice, GPU_DEVICE, GPU_DEVICE, b.device = MSG_MAX_GPUS - 1, CODEC_OK);
    DECODED(gpu_device, GpuDevice, GPU_DEVICE, GPU_DEVICE, b.device = MSG_MAX_GPUS,
            CODEC_E_CONTENT);
    DECODED(gpu_answer, GpuAnswer, GPU_ANSWER, GPU_ANSWER, b.cause = CAUSE_COUNT, CODEC_E_CONTENT);
    DECODED(board_del, Board, BOARD, BOARD_DEL, b.peer = MSG_MAX_NODES, CODEC_E_CONTENT);
    DECODED(engine_peer_del, EnginePeer, ENGINE_PEER, ENGINE_PEER_DEL, b.peer = MSG_MAX_NODES,
            CODEC_E_CONTENT);
    uint8_t bytes[MSG_ADDR_MAX + 1] = {0};
#define STATE(token_, addr_, result)                                                               \
    DECODED(engine_state, EngineState, ENGINE_STATE, ENGINE_STATE,                                 \
            (b.token = (ProtobufCBinaryData){token_, bytes},                                       \
             b.addr = (ProtobufCBinaryData){addr_, bytes}),                                        \
            result)
    STATE(32, MSG_ADDR_MAX, CODEC_OK);
    STATE(31, 0, CODEC_E_CONTENT);
    STATE(33, 0, CODEC_E_CONTENT);
    STATE(0, 0, CODEC_E_CONTENT);
    STATE(32, MSG_ADDR_MAX + 1, CODEC_E_CONTENT);
}

static void decode_refuses_lists(void **state)
{
    static uint32_t zero[MSG_MAX_RANKS + 1], two[] = {0, 1}, one[] = {1};
    static uint64_t zero64[3];
    static ProtobufCBinaryData nodes[MSG_MAX_NODES + 1];

    for (size_t i = 0; i < ARRAY_LEN(nodes); i++)
        nodes[i] = BYTES("a");
#define JOINED_(nnodes_, node_, n_, npid_, njoin_, result)                                         \
    DECODED(joined, Joined, JOINED, JOINED,                                                        \
            (b.nodes = nodes, b.n_nodes = nnodes_, b.member_node = node_, b.n_member_node = n_,    \
             b.member_pid = zero, b.n_member_pid = npid_, b.member_join = zero64,                  \
             b.n_member_join = njoin_),                                                            \
            result)
    JOINED_(1, zero, 2, 2, 0, CODEC_OK);
    JOINED_(1, zero, 2, 2, 2, CODEC_OK);
    JOINED_(2, two, 2, 2, 0, CODEC_OK);
    JOINED_(1, zero, MSG_MAX_RANKS, MSG_MAX_RANKS, 0, CODEC_OK);
    JOINED_(1, zero, MSG_MAX_RANKS + 1, MSG_MAX_RANKS + 1, 0, CODEC_E_CONTENT);
    JOINED_(1, zero, 0, 0, 0, CODEC_E_CONTENT);
    JOINED_(1, zero, 2, 1, 0, CODEC_E_CONTENT);
    JOINED_(1, zero, 2, 3, 0, CODEC_E_CONTENT);
    JOINED_(1, zero, 2, 2, 1, CODEC_E_CONTENT);
    JOINED_(1, zero, 2, 2, 3, CODEC_E_CONTENT);
    JOINED_(0, zero, 2, 2, 0, CODEC_E_CONTENT);
    JOINED_(MSG_MAX_NODES + 1, zero, 2, 2, 0, CODEC_E_CONTENT);
    JOINED_(1, two, 2, 2, 0, CODEC_E_CONTENT);  /* node 1 of 1 */
    JOINED_(2, zero, 2, 2, 0, CODEC_E_CONTENT); /* node 1 has no rank */
#define WAS_(was_, n_, rank_, result)                                                              \
    DECODED(joined, Joined, JOINED, JOINED,                                                        \
            (b.nodes = nodes, b.n_nodes = 1, b.member_node = b.member_pid = zero,                  \
             b.n_member_node = b.n_member_pid = 2, b.member_was = was_, b.n_member_was = n_,       \
             b.rank = rank_),                                                                      \
            result)
    static uint32_t twice[] = {3, 3}, most[] = {0, MSG_MAX_RANKS},
                    beyond[] = {MSG_MAX_RANKS + 1, 0};

    WAS_(two, 0, 1, CODEC_OK);
    WAS_(two, 2, 0, CODEC_OK);
    WAS_(two, 1, 0, CODEC_E_CONTENT);
    WAS_(two, 2, 2, CODEC_E_CONTENT);
    WAS_(zero, 2, 0, CODEC_OK); /* all are new */
    WAS_(twice, 2, 0, CODEC_E_CONTENT);
    WAS_(most, 2, 0, CODEC_OK);
    WAS_(beyond, 2, 0, CODEC_E_CONTENT);
#define NEWS_(gone_, n_, result)                                                                   \
    DECODED(join_news, JoinNews, JOIN_NEWS, JOIN_NEWS, (b.gone = gone_, b.n_gone = n_), result)
    NEWS_(two, 0, CODEC_OK);
    NEWS_(two, 2, CODEC_OK);
    NEWS_(zero, 2, CODEC_E_CONTENT); /* one rank twice */
    NEWS_(beyond, 1, CODEC_E_CONTENT);
    NEWS_(zero, MSG_MAX_RANKS + 1, CODEC_E_CONTENT);
#define COMMIT_(first, second, result)                                                             \
    DECODED(commit, Commit, COMMIT, COMMIT,                                                        \
            (nodes[0] = BYTES(first), nodes[1] = BYTES(second), b.nodes = nodes, b.n_nodes = 2,    \
             b.name = b.home = BYTES("h"), b.member_node = two, b.n_member_node = 2,               \
             b.member_pid = zero, b.n_member_pid = 2),                                             \
            result)
    COMMIT_("a", "b", CODEC_OK);
    COMMIT_("a", "a", CODEC_E_CONTENT);
    COMMIT_("b", "a", CODEC_E_CONTENT);
    COMMIT_("", "a", CODEC_E_CONTENT);
    COMMIT_("a", "a\0", CODEC_E_CONTENT);
#define BOARD_(me_, peers_, npeers_, ranks_, nranks_, result)                                      \
    DECODED(board_add, BoardAdd, BOARD_ADD, BOARD_ADD,                                             \
            (b.me = me_, b.peers = peers_, b.n_peers = npeers_, b.rank_node = ranks_,              \
             b.n_rank_node = nranks_),                                                             \
            result)
    BOARD_(1, two, 2, two, 2, CODEC_OK);
    BOARD_(2, two, 2, two, 2, CODEC_E_CONTENT);
    BOARD_(0, zero, 2, two, 2, CODEC_E_CONTENT);
    BOARD_(0, two, 0, two, 2, CODEC_E_CONTENT);
    BOARD_(0, two, 2, two, 0, CODEC_E_CONTENT);
    BOARD_(0, one, 1, one, 1, CODEC_E_CONTENT);
    BOARD_(0, one, 1, zero, MSG_MAX_RANKS, CODEC_OK);
    BOARD_(0, one, 1, zero, MSG_MAX_RANKS + 1, CODEC_E_CONTENT);
    BOARD_(0, zero, MSG_MAX_NODES + 1, zero, 1, CODEC_E_CONTENT);
}

static void decode_refuses_tables(void **state)
{
    Commd__Column column = COMMD__COLUMN__INIT, *columns[CODEC_MAX_COLUMNS + 1];
    Commd__Table table = COMMD__TABLE__INIT, *tables[CODEC_MAX_TABLES + 1];
    static ProtobufCBinaryData cells[MSG_MAX_CELLS + 1];

    for (size_t i = 0; i < ARRAY_LEN(columns); i++)
        columns[i] = &column;
    for (size_t i = 0; i < ARRAY_LEN(tables); i++)
        tables[i] = &table;
    column.key = column.title = table.name = BYTES("a");
    table.columns = columns;
    table.cells = cells;
#define TABLES_(ntables_, ncolumns_, nrows_, ncells_, result)                                      \
    DECODED(tables, Tables, TABLES, TABLES,                                                        \
            (b.tables = tables, b.n_tables = ntables_, table.n_columns = ncolumns_,                \
             table.nrows = nrows_, table.n_cells = ncells_),                                       \
            result)
    TABLES_(0, 0, 0, 0, CODEC_OK);
    TABLES_(1, 1, 0, 0, CODEC_OK);
    TABLES_(1, 2, 3, 6, CODEC_OK);
    TABLES_(1, 2, 3, 5, CODEC_E_CONTENT);
    TABLES_(1, 2, 3, 7, CODEC_E_CONTENT);
    TABLES_(1, 0, 0, 0, CODEC_E_CONTENT);
    TABLES_(1, 2, UINT32_MAX, 6, CODEC_E_CONTENT);
    TABLES_(CODEC_MAX_TABLES, 1, 1, 1, CODEC_OK);
    TABLES_(CODEC_MAX_TABLES + 1, 1, 1, 1, CODEC_E_CONTENT);
    TABLES_(1, CODEC_MAX_COLUMNS, 1, CODEC_MAX_COLUMNS, CODEC_OK);
    TABLES_(1, CODEC_MAX_COLUMNS + 1, 1, CODEC_MAX_COLUMNS + 1, CODEC_E_CONTENT);
    TABLES_(1, 1, MSG_MAX_CELLS, MSG_MAX_CELLS, CODEC_OK);
    TABLES_(1, 1, MSG_MAX_CELLS + 1, MSG_MAX_CELLS + 1, CODEC_E_CONTENT);
    TABLES_(2, 1, MSG_MAX_CELLS, MSG_MAX_CELLS, CODEC_E_CONTENT);
#define CELL(type_, value, result)                                                                 \
    column.type = type_;                                                                           \
    cells[0] = BYTES(value);                                                                       \
    TABLES_(1, 1, 1, 1, result)
    CELL(MSG_CELL_STRING, "-", CODEC_OK);
    CELL(MSG_CELL_STRING, "a\0b", CODEC_E_CONTENT);
    CELL(MSG_CELL_STRING, "a\nb", CODEC_E_CONTENT);
    CELL(MSG_CELL_NUMBER, "", CODEC_OK);
    CELL(MSG_CELL_NUMBER, "-1.50e-3", CODEC_OK);
    CELL(MSG_CELL_NUMBER, "1}", CODEC_E_CONTENT);
    CELL(MSG_CELL_BOOL, "yes", CODEC_OK);
    CELL(MSG_CELL_BOOL, "maybe", CODEC_E_CONTENT);
    CELL(MSG_CELL_BOOL + 1, "", CODEC_E_CONTENT);
    column.key = BYTES("not a key");
    CELL(MSG_CELL_STRING, "", CODEC_E_CONTENT);
    column.key = BYTES("");
    CELL(MSG_CELL_STRING, "", CODEC_E_CONTENT);
}

/* ---- seeds for the fuzzer ---------------------------------------------------------------- */

static int write_corpus(const char *dir)
{
    for (int i = 0; i < SAMPLE_TYPES; i++) {
        char path[4096];
        uint8_t *frame;
        size_t len;
        FILE *f;

        encode_sample(sample_types[i], i % 2 ? SAMPLE_SMALL : SAMPLE_LARGE, &frame, &len);
        frame[2] = 0; /* tests/lib/frames.h */
        snprintf(path, sizeof(path), "%s/%s", dir, msg_type_name(sample_types[i]));
        f = fopen(path, "w");
        if (!f || fwrite(frame, len, 1, f) != 1 || fclose(f)) {
            perror(path);
            return 1;
        }
        free(frame);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_round_trips),
        cmocka_unit_test(every_field_is_listed),
        cmocka_unit_test(every_field_of_the_schema_is_listed),
        cmocka_unit_test(client_frames_fit),
        cmocka_unit_test(names),
        cmocka_unit_test(truncated_at_every_byte),
        cmocka_unit_test(headers),
        cmocka_unit_test(garbage),
        cmocka_unit_test(damaged_samples),
        cmocka_unit_test(unknown_fields_are_skipped),
        cmocka_unit_test(unknown_kinds_are_refused),
        cmocka_unit_test(small_kinds_stay_small),
        cmocka_unit_test(many_fields_hit_the_limit),
        cmocka_unit_test(arena_keeps_its_limit),
        cmocka_unit_test(encode_refuses_fields),
        cmocka_unit_test(encode_refuses_lists),
        cmocka_unit_test(encode_refuses_tables),
        cmocka_unit_test(text_is_cleaned_when_encoded),
        cmocka_unit_test(decode_refuses_strings),
        cmocka_unit_test(decode_refuses_numbers),
        cmocka_unit_test(decode_refuses_lists),
        cmocka_unit_test(decode_refuses_tables),
    };

    if (argc == 3 && !strcmp(argv[1], "--corpus"))
        return write_corpus(argv[2]);
    return cmocka_run_group_tests_name("codec", tests, NULL, NULL);
}
