/* conf_value.c - text from the file <-> field of struct conf, one pair of functions per type.
 *
 * A value is taken exactly, or refused with a reason; nothing is rounded, cut or guessed. Durations
 * and sizes must have their unit, because "500" means seconds in one daemon and milliseconds in
 * another. Text that becomes a file name, an interface name or a variable of the engine's
 * environment may have only the characters that these need, so no later code has to quote it. All
 * functions are pure. */
#include "daemon/conf/conf_keys.h"
#include "shm/util/weight.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>

#define DIGITS             "0123456789"
#define LOWER              "abcdefghijklmnopqrstuvwxyz"
#define ALNUM              DIGITS LOWER "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define CREDENTIALS_PREFIX "$CREDENTIALS_DIRECTORY/"

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit time_units[] = {/* largest first: format takes the first that fits */
                                         {"h", 3600000},
                                         {"m", 60000},
                                         {"s", 1000},
                                         {"ms", 1},
                                         {NULL, 0}};
static const struct unit size_units[] = {{"T", UINT64_C(1) << 40},
                                         {"G", UINT64_C(1) << 30},
                                         {"M", UINT64_C(1) << 20},
                                         {"K", UINT64_C(1) << 10},
                                         {NULL, 0}};

/* What values of a type may be. A type of text has @check or @letters, or takes one of @words; a
 * number has @parse. */
struct value_type {
    const char *allowed; /* for people; MIN and MAX stand for the key's; NULL: as @words */
    const char *words;   /* all that there are, joined by ", "; a number is a word's place */
    const char *letters; /* of which the text may consist */
    const char *wrong;   /* what a text is that has other letters, or that is none of the words */
    const struct unit *units;
    const char *(*check)(const struct conf_key *key, const char *text);
    const char *(*parse)(const struct conf_key *key, const char *text, uint64_t *ret_value);
};
static const struct value_type types[CONF_NODES + 1];

const char *conf_quote(const char *text, size_t len, char buf[CONF_QUOTE_MAX])
{
    enum { SHOWN = 60 };
    char *at = buf;

    *at++ = '"';
    for (size_t i = 0; i < len && i < SHOWN; i++) {
        unsigned char c = (unsigned char)text[i];

        if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\')
            *at++ = (char)c;
        else
            at += sprintf(at, "\\x%02x", c);
    }
    strcpy(at, len > SHOWN ? "\"..." : "\"");
    return buf;
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* Saturates: a number that fits no uint64_t is out of every range anyway. */
static bool parse_number(const char *text, int base, uint64_t *ret_value, const char **ret_end)
{
    const char *digits = base == 8 ? "01234567" : DIGITS;
    size_t n = strspn(text, digits);
    uint64_t v = 0;

    for (size_t i = 0; i < n; i++)
        if (__builtin_mul_overflow(v, (uint64_t)base, &v) ||
            __builtin_add_overflow(v, (uint64_t)(text[i] - '0'), &v)) {
            v = UINT64_MAX;
            break;
        }
    *ret_value = v;
    *ret_end = text + n;
    return n > 0;
}

/* NULL when good, else what is wrong. */
static const char *parse_count(const struct conf_key *key, const char *text, uint64_t *ret_value)
{
    bool negative = text[0] == '-';
    const char *end;
    uint64_t v;

    if (!parse_number(text + negative, 10, &v, &end) || *end)
        return "not a whole number";
    if (negative || v < key->min || v > key->max)
        return "out of range";
    *ret_value = v;
    return NULL;
}

static const char *parse_with_unit(const struct conf_key *key, const char *text,
                                   uint64_t *ret_value)
{
    const struct value_type *type = &types[key->type];
    const struct unit *unit = type->units;
    const char *end;
    uint64_t v;

    if (!parse_number(text, 10, &v, &end))
        return type->wrong;
    while (unit->name && strcmp(end, unit->name))
        unit++;
    if (!unit->name)
        return *end ? type->wrong : "a number without a unit";
    if (__builtin_mul_overflow(v, unit->factor, &v) || v < key->min || v > key->max)
        return "out of range";
    *ret_value = v;
    return NULL;
}

static const char *parse_mode(const struct conf_key *key, const char *text, uint64_t *ret_value)
{
    const char *end;
    uint64_t v;

    if (!parse_number(text, 8, &v, &end) || *end)
        return "not an octal mode";
    if (v < key->min || v > key->max || (v & 0600) != 0600)
        return "out of range";
    *ret_value = v;
    return NULL;
}

/* The place of @text among @words, from 0 on; -1: it is none of them. */
static int word_place(const char *words, const char *text)
{
    size_t len = strlen(text), n;

    for (int place = 0;; place++, words += n + strlen(", ")) {
        n = strcspn(words, ",");
        if (n == len && !strncmp(words, text, n))
            return place;
        if (!words[n])
            return -1;
    }
}

static const char *parse_word(const struct conf_key *key, const char *text, uint64_t *ret_value)
{
    int place = word_place(types[key->type].words, text);

    if (place < 0)
        return types[key->type].wrong;
    *ret_value = (uint64_t)place;
    return NULL;
}

static void format_word(const char *words, uint64_t place, char *buf, size_t len)
{
    while (place--)
        words += strcspn(words, ",") + strlen(", ");
    snprintf(buf, len, "%.*s", (int)strcspn(words, ","), words);
}

static void format_with_unit(const struct unit *units, uint64_t v, char *buf, size_t len)
{
    for (; units->name; units++)
        if (v >= units->factor && v % units->factor == 0)
            break;
    if (units->name)
        snprintf(buf, len, "%" PRIu64 "%s", v / units->factor, units->name);
    else
        snprintf(buf, len, "%" PRIu64, v); /* no configured value: min is a whole unit */
}

/* ---- text: NULL when good, else what is wrong ------------------------------------------------ */

static const char *check_name(const struct conf_key *key, const char *text)
{
    if (!strchr(ALNUM, text[0]) || text[strspn(text, ALNUM "._-")])
        return "not a name";
    return NULL;
}

static const char *check_path(const struct conf_key *key, const char *text)
{
    bool credential = key->flags & CONF_CREDENTIAL && starts_with(text, CREDENTIALS_PREFIX);

    if (text[0] != '/' && !credential)
        return "not an absolute path";
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c < 0x20 || *c == 0x7f)
            return "with a control character in it";
    return NULL;
}

/* UCX also knows "^x" (all but x) and "x:aux". Refused: which transports are in use decides
 * whether the network must be trusted, so they have to be named. */
static const char *check_transport_names(const struct conf_key *key, const char *text)
{
    for (const char *at = text;;) {
        size_t n = strspn(at, LOWER DIGITS "_");

        if (n == 0)
            return "not a list of transports";
        if (!at[n])
            return NULL;
        if (at[n] != ',')
            return "not a list of transports";
        at += n + 1;
    }
}

bool conf_port_range(const char *text, unsigned *ret_low, unsigned *ret_high)
{
    const char *end;
    uint64_t low, high;

    if (!parse_number(text, 10, &low, &end) || *end != '-')
        return false;
    if (!parse_number(end + 1, 10, &high, &end) || *end)
        return false;
    *ret_low = (unsigned)MIN(low, UINT64_C(65536));
    *ret_high = (unsigned)MIN(high, UINT64_C(65536));
    return true;
}

static const char *check_port_range(const struct conf_key *key, const char *text)
{
    unsigned low, high;

    if (!conf_port_range(text, &low, &high))
        return "not a range of ports";
    if (low < key->min || high > key->max)
        return "out of range";
    return low > high ? "backwards" : NULL;
}

static const char *check_threads(const struct conf_key *key, const char *text)
{
    uint64_t v;

    return strcmp(text, "auto") ? parse_count(key, text, &v) : NULL;
}

static const char *check_ipv6(const char *text)
{
    static const struct in6_addr any = IN6ADDR_ANY_INIT;
    const char *scope = strchr(text, '%'); /* of a link-local address: its interface */
    size_t n = scope ? (size_t)(scope - text) : strlen(text);
    char bare[CONF_ADDR_MAX];
    struct in6_addr v6;

    if (scope && (!scope[1] || scope[1 + strspn(scope + 1, ALNUM "._-")]))
        return "not an IPv6 address";
    memcpy(bare, text, n); /* fits: key->max was checked */
    bare[n] = '\0';
    if (inet_pton(AF_INET6, bare, &v6) != 1)
        return "not an IPv6 address";
    return memcmp(&v6, &any, sizeof(any)) ? NULL : "not the address of one node";
}

static const char *check_address(const struct conf_key *key, const char *text)
{
    struct in_addr v4;

    if (text[0] == '[')
        return "with brackets around it";
    if (strchr(text, ':'))
        return check_ipv6(text);
    if (!text[strspn(text, DIGITS ".")]) {
        if (inet_pton(AF_INET, text, &v4) != 1)
            return "not an IPv4 address";
        return v4.s_addr == htonl(INADDR_ANY) ? "not the address of one node" : NULL;
    }
    if (!strchr(ALNUM, text[0]) || text[strspn(text, ALNUM "._-")])
        return "not an address";
    return NULL;
}

/* "127.0.0.1:18480" or "[::1]:18480". A name is refused: at the start the resolver may not answer
 * yet, and what it answers would decide which machines can connect. */
bool conf_listen(const char *text, char ret_address[CONF_ADDR_MAX], uint16_t *ret_port)
{
    const char *colon = strrchr(text, ':'), *end;
    size_t len = colon ? (size_t)(colon - text) : 0;
    unsigned char bytes[sizeof(struct in6_addr)];
    bool v6 = text[0] == '[';
    uint64_t port;

    if (v6 && (len < 3 || text[len - 1] != ']'))
        return false;
    if (v6) {
        text++;
        len -= 2;
    }
    if (!len || len >= CONF_ADDR_MAX)
        return false;
    memcpy(ret_address, text, len);
    ret_address[len] = '\0';
    if (inet_pton(v6 ? AF_INET6 : AF_INET, ret_address, bytes) != 1)
        return false;
    if (!parse_number(colon + 1, 10, &port, &end) || *end || port < 1 || port > 65535)
        return false;
    *ret_port = (uint16_t)port;
    return true;
}

static const char *check_listen(const struct conf_key *key, const char *text)
{
    char address[CONF_ADDR_MAX];
    uint16_t port;

    return conf_listen(text, address, &port) ? NULL : "not an address and a port";
}

const char *conf_next_weight(const char **at, struct conf_weight *ret_weight)
{
    uint64_t uid, weight;

    if (!parse_number(*at, 10, &uid, at) || **at != '=')
        return "not a list of weights";
    if (!parse_number(*at + 1, 10, &weight, at) || (**at && **at != ','))
        return "not a list of weights";
    if (**at && !*++*at)
        return "not a list of weights";
    if (uid >= UINT32_MAX || weight < 1 || weight > USER_WEIGHT_MAX)
        return "out of range";
    *ret_weight = (struct conf_weight){(uint32_t)uid, (uint32_t)weight};
    return NULL;
}

static const char *check_weights(const struct conf_key *key, const char *text)
{
    const char *wrong = NULL;
    struct conf_weight w, earlier;

    for (const char *at = text; *at && !wrong;) {
        const char *entry = at;

        wrong = conf_next_weight(&at, &w);
        for (const char *p = text; p < entry && !wrong;)
            if (!conf_next_weight(&p, &earlier) && earlier.uid == w.uid)
                wrong = "with a user in it twice";
    }
    return wrong;
}

/* Length of the NCCL_NAME=VALUE at @text; 0: it is none. @ret_name: of what is before the '='. */
static size_t nccl_setting(const char *text, size_t *ret_name)
{
    size_t n = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"), end = strcspn(text, " ");

    *ret_name = n;
    for (size_t i = n; i < end; i++)
        if (text[i] < ' ' || text[i] > '~')
            return 0;
    return strncmp(text, "NCCL_", 5) || n <= 5 || text[n] != '=' || n + 1 >= end ? 0 : end;
}

static const char *check_nccl_env(const struct conf_key *key, const char *text)
{
    const char *next;

    if (strlen(text) > key->max)
        return "too long";
    for (const char *at = text; at; at = next) {
        size_t name, other, len = nccl_setting(at, &name);

        if (!len)
            return "not a list of settings";
        next = at[len] ? at + len + 1 : NULL;
        for (const char *p = text; p < at; p += nccl_setting(p, &other) + 1)
            if (nccl_setting(p, &other) && other == name && !memcmp(p, at, name))
                return "with a name in it twice";
    }
    return NULL;
}

/* ---- by type --------------------------------------------------------------------------------- */

static const struct value_type types[] = {
    [CONF_NAME] = {"1 to MAX letters, digits, '.', '_' or '-', first a letter or digit",
                   .check = check_name},
    [CONF_PATH] = {"an absolute path of at most MAX bytes", .check = check_path},
    /* letters as the kernel and the verbs library use them: "eth0.5@if3", "mlx5_0:1" */
    [CONF_DEVICE] = {"one network device such as eth0 or mlx5_0:1, or \"\" for the one that holds "
                     "this node's address",
                     .letters = ALNUM "._:@-", .wrong = "not the name of a device"},
    [CONF_FABRIC] = {.words = "auto, tcp, ucx", .wrong = "not a fabric"},
    [CONF_TRANSPORTS] = {"names of UCX transports joined by commas, such as tcp or rc,ud",
                         .check = check_transport_names},
    [CONF_PORT_RANGE] = {"LOW-HIGH within MIN-MAX", .check = check_port_range},
    /* As the kernel names its modules. Which there are, the engine finds out: it may be started on
     * another kernel than the one on which the file was checked. */
    [CONF_WORD] = {"auto, system, or a name that the kernel has such as cubic: 1 to MAX letters, "
                   "digits, '_' or '-'",
                   .letters = ALNUM "_-", .wrong = "not a word"},
    [CONF_ADDRESS] = {"an IPv4 address, an IPv6 address without brackets, or a host name, of at "
                      "most MAX bytes",
                      .check = check_address},
    [CONF_ENCRYPTION] = {.words = "auto, on, off", .wrong = "unknown"},
    [CONF_THREADS] = {"auto, or MIN to MAX", .check = check_threads},
    [CONF_AUTHENTICATION] = {.words = "key, both, certificate", .wrong = "unknown"},
    [CONF_SWITCH] = {.words = "auto, yes, no", .wrong = "unknown"},
    [CONF_LISTEN] = {"ADDRESS:PORT such as 127.0.0.1:18480, IPv6 in brackets such as [::1]:18480, "
                     "or \"\" for none",
                     .check = check_listen},
    [CONF_WEIGHTS] = {"UID=WEIGHT joined by commas, weights 1 to 1000, such as 1001=30,1002=5, or "
                      "\"\" for none",
                      .check = check_weights},
    [CONF_NCCL_ENV] = {"NCCL_NAME=VALUE, one or more with a space between them, of at most MAX "
                       "bytes, such as NCCL_DEBUG=WARN, or \"\" for none",
                       .check = check_nccl_env},
    [CONF_BOOL] = {"true, false", .words = "false, true", .wrong = "", .parse = parse_word},
    [CONF_LEVEL] = {.words = "error, warn, info, debug", .wrong = "", .parse = parse_word},
    [CONF_MODE] = {"MIN to MAX, octal, with read and write for the owner", .parse = parse_mode},
    [CONF_PORT] = {"MIN to MAX", .parse = parse_count},
    [CONF_COUNT] = {"MIN to MAX", .parse = parse_count},
    [CONF_SIZE] = {"MIN to MAX, a whole number and its unit (K, M, G, T)", .units = size_units,
                   .wrong = "not a size", .parse = parse_with_unit},
    [CONF_DURATION] = {"MIN to MAX, a whole number and its unit (ms, s, m, h)", .units = time_units,
                       .wrong = "not a duration", .parse = parse_with_unit},
    [CONF_NODES] = {"a list of MIN to MAX maps {name, address, port}"},
};
_Static_assert(USER_WEIGHT_MAX == 1000, "the text about CONF_WEIGHTS says so");

static bool is_text(conf_type_t type)
{
    return type <= CONF_NCCL_ENV;
}

/* NULL when good, else what is wrong. */
static const char *parse_text(const struct conf_key *key, const char *text, size_t len)
{
    const struct value_type *type = &types[key->type];

    bool ranged = key->type == CONF_PORT_RANGE || key->type == CONF_THREADS; /* of numbers */

    if (len > (ranged ? key->size - 1 : key->max))
        return "too long";
    if (!text[0])
        return key->flags & CONF_MAY_BE_EMPTY ? NULL : "";
    if (type->check)
        return type->check(key, text);
    if (type->words)
        return word_place(type->words, text) < 0 ? type->wrong : NULL;
    return text[strspn(text, type->letters)] ? type->wrong : NULL;
}

static void store_value(const struct conf_key *key, uint64_t v, void *field)
{
    switch (key->size) {
    case sizeof(bool):
        *(bool *)field = v;
        break;
    case sizeof(uint16_t):
        *(uint16_t *)field = (uint16_t)v;
        break;
    case sizeof(unsigned):
        *(unsigned *)field = (unsigned)v;
        break;
    default:
        *(uint64_t *)field = v;
    }
}

static uint64_t fetch_value(const struct conf_key *key, const void *field)
{
    switch (key->size) {
    case sizeof(bool):
        return *(const bool *)field;
    case sizeof(uint16_t):
        return *(const uint16_t *)field;
    case sizeof(unsigned):
        return *(const unsigned *)field;
    default:
        return *(const uint64_t *)field;
    }
}

/* @text must end in a NUL at @len; another one inside is refused. */
int conf_value_parse(const struct conf_key *key, const char *text, size_t len, void *base,
                     char *why, size_t why_len)
{
    char *field = (char *)base + key->offset;
    char quoted[CONF_QUOTE_MAX];
    const char *wrong;
    uint64_t v = 0;

    assert(key->type < CONF_NODES);
    if (memchr(text, '\0', len)) {
        wrong = "with a NUL byte in it";
    } else if (is_text(key->type)) {
        wrong = parse_text(key, text, len);
        if (!wrong) {
            memset(field, 0, key->size); /* the whole field: tests compare structs byte by byte */
            memcpy(field, text, len);
        }
    } else {
        wrong = types[key->type].parse(key, text, &v);
        if (!wrong)
            store_value(key, v, field);
    }
    if (!wrong)
        return 0;
    conf_quote(text, len, quoted);
    snprintf(why, why_len, "is %s%s%s", quoted, wrong[0] ? ", " : "", wrong);
    return CONF_E_BAD_VALUE;
}

static void format_nodes(const struct conf *conf, char *buf, size_t len)
{
    size_t at = 0;

    buf[0] = '\0';
    for (unsigned i = 0; i < conf->nnodes; i++) {
        const struct conf_node *node = &conf->nodes[i];
        bool v6 = strchr(node->address, ':');
        char one[CONF_NAME_MAX + CONF_ADDR_MAX + 16], count[32];
        int n = snprintf(one, sizeof(one), "%s%s %s%s%s:%u", i ? ", " : "", node->name,
                         v6 ? "[" : "", node->address, v6 ? "]" : "", node->port);
        int tail = snprintf(count, sizeof(count), ", ... (%u nodes)", conf->nnodes);

        if (at + (size_t)n + (i + 1 < conf->nnodes ? (size_t)tail : 0) >= len) {
            snprintf(buf + at, len - at, "%s", count);
            return;
        }
        memcpy(buf + at, one, (size_t)n + 1);
        at += (size_t)n;
    }
}

static void format_number(const struct conf_key *key, uint64_t v, char *buf, size_t len)
{
    const struct value_type *type = &types[key->type];

    if (type->words)
        format_word(type->words, v, buf, len);
    else if (type->units)
        format_with_unit(type->units, v, buf, len);
    else
        snprintf(buf, len, key->type == CONF_MODE ? "0%" PRIo64 : "%" PRIu64, v);
}

void conf_value_format(const struct conf_key *key, const void *base, char *buf, size_t len)
{
    const char *field = (const char *)base + key->offset;

    if (key->type == CONF_NODES)
        format_nodes(base, buf, len);
    else if (is_text(key->type))
        snprintf(buf, len, "%s", field);
    else
        format_number(key, fetch_value(key, field), buf, len);
}

void conf_value_allowed(const struct conf_key *key, char *buf, size_t len)
{
    const struct value_type *type = &types[key->type];
    bool empty = key->type == CONF_PATH && key->flags & CONF_MAY_BE_EMPTY;
    size_t at = 0;

    for (const char *c = type->allowed ? type->allowed : type->words; *c && at < len;) {
        bool least = !strncmp(c, "MIN", 3), limit = least || !strncmp(c, "MAX", 3);

        if (limit)
            format_number(key, least ? key->min : key->max, buf + at, len - at);
        else
            snprintf(buf + at, len - at, "%c", *c);
        at += strlen(buf + at);
        c += limit ? 3 : 1;
    }
    if (at < len)
        snprintf(buf + at, len - at, "%s", empty ? ", or \"\" for none" : "");
}
