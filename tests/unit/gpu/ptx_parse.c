/* ptx_parse.c - text of PTX becomes lists of instructions, whose operands are numbers of slots. */
#include "tests/unit/gpu/ptx_priv.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS_MAX = 8192, RANGES_MAX = 16 };

/* ---- types and instructions -------------------------------------------------------------- */

const struct ptx_type_info ptx_types[] = {
    [B8] = {"b8", 8, 'c', false},    [U8] = {"u8", 8, 'c', false},
    [S8] = {"s8", 8, 'c', true},     [U16] = {"u16", 16, 'i', false},
    [S16] = {"s16", 16, 'i', true},  [B16] = {"b16", 16, 'b', false},
    [U32] = {"u32", 32, 'i', false}, [S32] = {"s32", 32, 'i', true},
    [B32] = {"b32", 32, 'b', false}, [U64] = {"u64", 64, 'i', false},
    [S64] = {"s64", 64, 'i', true},  [B64] = {"b64", 64, 'b', false},
    [F16] = {"f16", 16, 'h', false}, [F32] = {"f32", 32, 'f', false},
    [F64] = {"f64", 64, 'f', false}, [PRED] = {"pred", 1, 'p', false},
};
enum { TYPES = ARRAY_LEN(ptx_types) };

/* Operands: d the result, of the type's width; D of twice that; p a predicate. s a source of the
 * type's width, w one of 32 bits, q a predicate. None: they are read by a function of their own. */
static const struct {
    const char *name, *kinds, *operands;
    enum ptx_op op;
} instructions[] = {
    {"mov", "ibfp", "", OP_MOV},
    {"cvta.to.global", "i", "ds", OP_MOV},
    {"ld.param", "ibf", "", OP_LD_PARAM},
    {"ld", "cibf", "", OP_LD},
    {"ld.global", "cibf", "", OP_LD},
    {"ld.global.v2", "b", "", OP_LD},
    {"ld.global.v4", "ibf", "", OP_LD},
    {"st", "cibf", "", OP_ST},
    {"st.global", "cibf", "", OP_ST},
    {"st.global.v4", "ibf", "", OP_ST},
    {"cvt", "", "", OP_CVT},
    {"cvt.rn", "", "", OP_CVT_RN},
    {"add", "i", "dss", OP_ADD},
    {"sub", "i", "dss", OP_SUB},
    {"mul.lo", "i", "dss", OP_MUL},
    {"mul.wide", "i", "Dss", OP_MUL_WIDE},
    {"mad.lo", "i", "dsss", OP_MAD},
    {"div", "i", "dss", OP_DIV},
    {"neg", "i", "ds", OP_NEG},
    {"min", "i", "dss", OP_MIN},
    {"max", "i", "dss", OP_MAX},
    {"add.rn", "f", "dss", OP_ADD},
    {"mul.rn", "f", "dss", OP_MUL},
    {"div.rn", "f", "dss", OP_DIV},
    {"and", "bp", "dss", OP_AND},
    {"or", "bp", "dss", OP_OR},
    {"xor", "bp", "dss", OP_XOR},
    {"not", "bp", "ds", OP_NOT},
    {"shl", "b", "dsw", OP_SHL},
    {"shr", "ib", "dsw", OP_SHR},
    {"shf.l.wrap", "b", "dssw", OP_SHF},
    {"bfe", "i", "dsww", OP_BFE},
    {"bfi", "b", "dssww", OP_BFI},
    {"prmt", "b", "dssw", OP_PRMT},
    {"selp", "ibf", "dssq", OP_SELP},
    {"setp.eq", "ibf", "pss", OP_EQ},
    {"setp.ne", "ib", "pss", OP_NE},
    {"setp.lt", "if", "pss", OP_LT},
    {"setp.le", "if", "pss", OP_LE},
    {"setp.gt", "if", "pss", OP_GT},
    {"setp.ge", "if", "pss", OP_GE},
    {"setp.nan", "f", "pss", OP_NAN},
};

static const char *const fixed[FIXED] = {"",         "%tid.x",    "%ntid.x",  "%ctaid.x",
                                         "%ctaid.y", "%nctaid.x", "%nctaid.y"};

/* ---- parsing ------------------------------------------------------------------------------- */

struct range { /* .reg .b32 %r<7>; or a single register */
    char name[PTX_NAME_MAX];
    unsigned n, first, depth; /* n 0: single */
};

struct label {
    char name[PTX_NAME_MAX];
    unsigned at;
};

struct parser {
    const char *at;
    unsigned line, depth;
    char param[PTX_NAME_MAX];
    struct ptx_kernel *k;
    unsigned nranges, nlabels, ngotos;
    struct range ranges[RANGES_MAX];
    struct label *labels, *gotos; /* owned */
    char *error;
};

/* The first error stays. Always false. */
static bool wrong(struct parser *p, const char *format, ...)
{
    va_list args;
    int n;

    if (*p->error)
        return false;
    n = snprintf(p->error, PTX_ERROR_MAX, "line %u: ", p->line);
    va_start(args, format);
    vsnprintf(p->error + n, (size_t)(PTX_ERROR_MAX - n), format, args);
    va_end(args);
    return false;
}

static void space(struct parser *p)
{
    for (;; p->at++) {
        if (*p->at == '/' && p->at[1] == '/')
            p->at += strcspn(p->at, "\n");
        if (!*p->at || !isspace((unsigned char)*p->at))
            return;
        p->line += *p->at == '\n';
    }
}

static bool is(struct parser *p, const char *token)
{
    size_t n = strlen(token);

    space(p);
    if (strncmp(p->at, token, n))
        return false;
    p->at += n;
    return true;
}

static bool need(struct parser *p, const char *token)
{
    return is(p, token) || wrong(p, "no %s before \"%.20s\"", token, p->at);
}

/* What an instruction, a register, a label or a directive is called. */
static bool word(struct parser *p, char *ret_word)
{
    size_t n;

    space(p);
    n = strspn(p->at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.$%");
    if (!n || n >= PTX_NAME_MAX)
        return wrong(p, "not a name: \"%.20s\"", p->at);
    memcpy(ret_word, p->at, n);
    ret_word[n] = 0;
    p->at += n;
    return true;
}

static bool number(struct parser *p, uint64_t *ret_value)
{
    char *end;

    space(p);
    if (p->at[0] == '0' && (p->at[1] == 'f' || p->at[1] == 'd')) /* bits of a float, a double */
        *ret_value = strtoull(p->at + 2, &end, 16);
    else if (*p->at == '-')
        *ret_value = (uint64_t)strtoll(p->at, &end, 0);
    else
        *ret_value = strtoull(p->at, &end, 0);
    if (end > p->at && *end == 'U')
        end++;
    if (end == p->at || isalnum((unsigned char)*end))
        return wrong(p, "not a number: \"%.20s\"", p->at);
    p->at = end;
    return true;
}

static bool slots(struct parser *p, unsigned n, uint8_t bits, unsigned *ret_first)
{
    struct ptx_kernel *k = p->k;

    if (n > SLOTS_MAX - k->nslots)
        return wrong(p, "too many registers");
    memset(k->bits + k->nslots, bits, n);
    *ret_first = k->nslots;
    k->nslots += n;
    return true;
}

static bool constant(struct parser *p, uint64_t value, uint8_t bits, uint16_t *ret_slot)
{
    unsigned at = 0;

    if (!slots(p, 1, bits, &at))
        return false;
    p->k->set[at] = true;
    p->k->value[at] = value;
    *ret_slot = (uint16_t)at;
    return true;
}

/* What a register's name says, or what a number is. @bits: the width that it has to have, at least
 * for what is @wider. */
static bool operand(struct parser *p, uint8_t bits, bool wider, bool source, uint16_t *ret_slot)
{
    char name[PTX_NAME_MAX];
    uint64_t value;

    space(p);
    if (source && (isdigit((unsigned char)*p->at) || *p->at == '-')) {
        value = 0;
        if (!number(p, &value))
            return false;
        return constant(p, bits < 64 ? value & ((1ull << bits) - 1) : value, bits, ret_slot);
    }
    if (!word(p, name))
        return false;
    if (!source && !strcmp(name, "_")) { /* of which nothing is kept */
        unsigned at = 0;

        if (!slots(p, 1, bits, &at))
            return false;
        *ret_slot = (uint16_t)at;
        return true;
    }
    if (source && *p->param && !strcmp(name, p->param))
        return constant(p, PTX_PARAM_SPACE, 64, ret_slot);
    for (unsigned i = TID_X; source && i < FIXED; i++) {
        if (!strcmp(name, fixed[i])) {
            *ret_slot = (uint16_t)i;
            return bits == 32 || wrong(p, "%s is of 32 bits", name);
        }
    }
    for (unsigned i = p->nranges; i-- > 0;) {
        const struct range *r = &p->ranges[i];
        size_t n = strlen(r->name);
        unsigned long number_of = 0;
        uint8_t has;

        if (strncmp(name, r->name, n) || (r->n ? !isdigit((unsigned char)name[n]) : name[n]))
            continue;
        if (r->n && (number_of = strtoul(name + n, NULL, 10)) >= r->n)
            continue;
        *ret_slot = (uint16_t)(r->first + number_of);
        has = p->k->bits[*ret_slot];
        return has == bits || (wider && has > bits && bits > 1) ||
               wrong(p, "%s has %u bits, not %u", name, has, bits);
    }
    return wrong(p, "not known: %s", name);
}

/* One, or {a, b, ...}. */
static bool operands(struct parser *p, uint8_t bits, bool wider, bool source, uint16_t *slot,
                     uint8_t *ret_n)
{
    *ret_n = 0;
    if (!is(p, "{")) {
        *ret_n = 1;
        return operand(p, bits, wider, source, slot);
    }
    do {
        if (*ret_n == 4)
            return wrong(p, "more than four operands");
        if (!operand(p, bits, wider, source, &slot[(*ret_n)++]))
            return false;
    } while (is(p, ","));
    return need(p, "}");
}

static bool address(struct parser *p, struct ptx_insn *i)
{
    uint64_t offset = 0;

    if (!need(p, "[") || !operand(p, 64, false, true, &i->src[0]))
        return false;
    if (is(p, "+") && !number(p, &offset))
        return false;
    i->offset = (int64_t)offset;
    return need(p, "]");
}

static bool parse_mov(struct parser *p, struct ptx_insn *i)
{
    uint8_t bits = ptx_types[i->type].bits, part = bits;

    space(p);
    if (*p->at == '{') {
        i->op = OP_UNPACK;
        part = bits / 2;
    }
    if (!operands(p, part, false, false, i->dst, &i->ndst) || !need(p, ","))
        return false;
    part = bits;
    space(p);
    if (*p->at == '{') {
        i->op = OP_PACK;
        part = bits / 2;
    }
    if (!operands(p, part, false, true, i->src, &i->nsrc))
        return false;
    return i->ndst + i->nsrc == (i->op == OP_MOV ? 2 : 3) || wrong(p, "not two halves");
}

static bool parse_memory(struct parser *p, struct ptx_insn *i, unsigned vector)
{
    uint8_t bits = ptx_types[i->type].bits, n = 0;
    uint16_t slot[4];

    if (i->op != OP_ST) {
        i->nsrc = 1;
        return operands(p, bits, true, false, i->dst, &i->ndst) &&
               (i->ndst == vector || wrong(p, "%u operands", i->ndst)) && need(p, ",") &&
               address(p, i);
    }
    if (!address(p, i) || !need(p, ",") || !operands(p, bits, true, true, slot, &n))
        return false;
    if (n != vector)
        return wrong(p, "%u operands", n);
    memcpy(i->dst, slot, sizeof slot); /* what is stored; the address is the source */
    i->ndst = n;
    i->nsrc = 1;
    return true;
}

static bool parse_operands(struct parser *p, struct ptx_insn *i, const char *pattern)
{
    for (const char *c = pattern; *c; c++) {
        bool source = strchr("swq", *c);
        uint8_t bits = *c == 'w'                ? 32
                       : *c == 'p' || *c == 'q' ? 1
                       : *c == 'D'              ? 2 * ptx_types[i->type].bits
                                                : ptx_types[i->type].bits;

        if (c > pattern && !need(p, ","))
            return false;
        if (!operand(p, bits, false, source, source ? &i->src[i->nsrc++] : &i->dst[i->ndst++]))
            return false;
    }
    return true;
}

/* The type that @name ends with, which is cut off. */
static bool type_of(char *name, uint8_t *ret_type)
{
    char *dot = strrchr(name, '.');

    for (unsigned t = 0; dot && t < TYPES; t++) {
        if (!strcmp(dot + 1, ptx_types[t].name)) {
            *dot = 0;
            *ret_type = (uint8_t)t;
            return true;
        }
    }
    return false;
}

/* Between integers bits are cut off or added; with floats only what is listed here. */
static bool parse_cvt(struct parser *p, struct ptx_insn *i, const char *name)
{
    static const uint8_t floats[][2] = {{F16, F32}, {F32, F64}, {F32, U32}, {F64, U32}};
    char to = ptx_types[i->type].kind, from = ptx_types[i->from].kind;
    bool known = false;

    if (i->op == OP_CVT)
        known = (strchr("ic", to) && strchr("ic", from)) || (i->type == F32 && i->from == F16);
    for (unsigned f = 0; i->op == OP_CVT_RN && f < ARRAY_LEN(floats); f++)
        known |= floats[f][0] == i->type && floats[f][1] == i->from;
    if (!known)
        return wrong(p, "unknown instruction: %s", name);
    i->ndst = i->nsrc = 1;
    return operand(p, ptx_types[i->type].bits, true, false, &i->dst[0]) && need(p, ",") &&
           operand(p, ptx_types[i->from].bits, true, true, &i->src[0]);
}

static bool parse_plain(struct parser *p, struct ptx_insn *i, const char *name, char *cut)
{
    bool typed = type_of(cut, &i->type);

    if (typed && !strncmp(cut, "cvt.", 4)) {
        i->from = i->type;
        typed = type_of(cut, &i->type);
    }
    for (unsigned n = 0; typed && n < ARRAY_LEN(instructions); n++) {
        const char *kinds = instructions[n].kinds;

        if (strcmp(instructions[n].name, cut) ||
            (*kinds && !strchr(kinds, ptx_types[i->type].kind)))
            continue;
        i->op = (uint8_t)instructions[n].op;
        switch (i->op) {
        case OP_MOV:
            return *instructions[n].operands ? parse_operands(p, i, instructions[n].operands)
                                             : parse_mov(p, i);
        case OP_LD:
        case OP_LD_PARAM:
        case OP_ST:
            return parse_memory(p, i, strstr(cut, ".v4") ? 4 : strstr(cut, ".v2") ? 2 : 1);
        case OP_CVT:
        case OP_CVT_RN:
            return parse_cvt(p, i, name);
        default:
            return parse_operands(p, i, instructions[n].operands);
        }
    }
    return wrong(p, "unknown instruction: %s", name);
}

static bool remember(struct parser *p, struct label **list, unsigned *n, const char *name,
                     unsigned at)
{
    if (!(*n & (*n - 1)))
        *list = realloc(*list, (*n ? 2 * *n : 1) * sizeof **list);
    snprintf((*list)[*n].name, sizeof(*list)[*n].name, "%s", name);
    (*list)[(*n)++].at = at;
    return true;
}

static bool parse_insn(struct parser *p, const char *start)
{
    struct ptx_kernel *k = p->k;
    char name[PTX_NAME_MAX], cut[PTX_NAME_MAX], target[PTX_NAME_MAX];
    struct ptx_insn *i;

    if (!(k->ninsns & (k->ninsns - 1)))
        k->insns = realloc(k->insns, (k->ninsns ? 2 * k->ninsns : 1) * sizeof *k->insns);
    i = &k->insns[k->ninsns++];
    *i = (struct ptx_insn){.guard = ALWAYS, .text = start, .line = p->line};
    if (is(p, "@")) {
        i->unless = is(p, "!");
        if (!operand(p, 1, false, true, &i->guard))
            return false;
    }
    if (!word(p, name))
        return false;
    memcpy(cut, name, sizeof cut);
    if (!strcmp(name, "ret")) {
        i->op = OP_RET;
    } else if (!strcmp(name, "bra") || !strcmp(name, "bra.uni")) {
        i->op = OP_BRA;
        if (!word(p, target) || !remember(p, &p->gotos, &p->ngotos, target, k->ninsns - 1))
            return false;
    } else if (!parse_plain(p, i, name, cut)) {
        return false;
    }
    return need(p, ";");
}

/* .reg .b32 %r<7>; .pragma "nounroll"; */
static bool parse_directive(struct parser *p)
{
    char name[PTX_NAME_MAX], type_name[PTX_NAME_MAX];
    struct range *r = &p->ranges[p->nranges];
    uint64_t n = 0;
    uint8_t type;

    if (!word(p, name))
        return false;
    if (!strcmp(name, ".pragma")) {
        p->at += strcspn(p->at, ";");
        return need(p, ";");
    }
    if (strcmp(name, ".reg") || p->nranges == RANGES_MAX || !word(p, type_name) ||
        !type_of(type_name, &type) || !word(p, r->name))
        return wrong(p, "unknown: %s", name);
    if (is(p, "<") && !(number(p, &n) && n && need(p, ">")))
        return wrong(p, "no registers");
    r->n = (unsigned)n;
    r->depth = p->depth;
    p->nranges++;
    return slots(p, n ? r->n : 1, ptx_types[type].bits, &r->first) && need(p, ";");
}

static bool parse_body(struct parser *p)
{
    char name[PTX_NAME_MAX];

    for (p->depth = 1; p->depth;) {
        const char *start;

        space(p);
        start = p->at;
        if (is(p, "}")) {
            while (p->nranges && p->ranges[p->nranges - 1].depth == p->depth)
                p->nranges--;
            p->depth--;
        } else if (is(p, "{")) {
            p->depth++;
        } else if (*p->at == '.') {
            if (!parse_directive(p))
                return false;
        } else if (*p->at == '$') {
            if (!word(p, name) || !need(p, ":") ||
                !remember(p, &p->labels, &p->nlabels, name, p->k->ninsns))
                return false;
        } else if (!parse_insn(p, start)) {
            return false;
        }
    }
    for (unsigned g = 0; g < p->ngotos; g++) {
        unsigned l = 0;

        while (l < p->nlabels && strcmp(p->labels[l].name, p->gotos[g].name))
            l++;
        if (l == p->nlabels)
            return wrong(p, "no label %s", p->gotos[g].name);
        p->k->insns[p->gotos[g].at].target = p->labels[l].at;
    }
    p->nlabels = p->ngotos = 0;
    return p->k->ninsns || wrong(p, "no instruction");
}

/* name( .param .align 8 .b8 name_param_0[3976] ) .maxntid 512 .minnctapersm 2 { */
static bool parse_kernel(struct parser *p)
{
    struct ptx_kernel *k = p->k;
    char name[PTX_NAME_MAX];
    uint64_t n = 0;

    k->bits = calloc(SLOTS_MAX, sizeof *k->bits);
    k->set = calloc(SLOTS_MAX, sizeof *k->set);
    k->value = calloc(SLOTS_MAX, sizeof *k->value);
    k->nslots = FIXED;
    memset(k->set, true, FIXED);
    memset(k->bits, 32, FIXED);
    k->value[ALWAYS] = 1;
    if (!word(p, k->name) || !need(p, "(") || !need(p, ".param") || !need(p, ".align") ||
        !need(p, "8") || !need(p, ".b8") || !word(p, p->param) || !need(p, "[") || !number(p, &n) ||
        !need(p, "]") || !need(p, ")"))
        return false;
    k->param_size = n;
    while (!is(p, "{")) {
        if (!word(p, name) || !number(p, &n))
            return false;
        if (!strcmp(name, ".maxntid"))
            k->maxntid = (unsigned)n;
        else if (strcmp(name, ".minnctapersm"))
            return wrong(p, "unknown: %s", name);
        while (is(p, ", 1")) /* of y and z */
            ;
    }
    return parse_body(p);
}

static bool parse_module(struct parser *p, struct ptx *x)
{
    char name[PTX_NAME_MAX];
    uint64_t n;

    while (space(p), *p->at) {
        if (!word(p, name))
            return false;
        if (!strcmp(name, ".version") || !strcmp(name, ".target")) {
            p->at += strcspn(p->at, "\n");
        } else if (!strcmp(name, ".address_size")) {
            if (!number(p, &n) || n != 64)
                return wrong(p, "addresses are not of 64 bits");
        } else if (!strcmp(name, ".visible")) {
            x->kernels = realloc(x->kernels, (x->nkernels + 1) * sizeof *x->kernels);
            p->k = &x->kernels[x->nkernels++];
            *p->k = (struct ptx_kernel){0};
            if (!need(p, ".entry") || !parse_kernel(p))
                return false;
        } else {
            return wrong(p, "unknown: %s", name);
        }
    }
    return true;
}

struct ptx *ptx_new(const char *text, char *ret_error)
{
    struct parser p = {.line = 1, .error = ret_error};
    struct ptx *x = calloc(1, sizeof *x);
    bool done;

    *ret_error = 0;
    x->text = strdup(text);
    p.at = x->text;
    done = parse_module(&p, x);
    free(p.labels);
    free(p.gotos);
    return done ? x : ptx_free(x);
}

struct ptx *ptx_free(struct ptx *x)
{
    for (unsigned i = 0; x && i < x->nkernels; i++) {
        free(x->kernels[i].insns);
        free(x->kernels[i].bits);
        free(x->kernels[i].set);
        free(x->kernels[i].value);
    }
    if (x) {
        free(x->kernels);
        free(x->text);
    }
    free(x);
    return NULL;
}

unsigned ptx_never_run(const struct ptx *x, unsigned *ret_all, char *ret_first)
{
    unsigned never = 0;

    *ret_all = 0;
    for (unsigned k = 0; k < x->nkernels; k++) {
        for (unsigned i = 0; i < x->kernels[k].ninsns; i++) {
            const struct ptx_insn *insn = &x->kernels[k].insns[i];

            (*ret_all)++;
            if (!insn->ran && !never++)
                snprintf(ret_first, PTX_ERROR_MAX, "%s, line %u: %.*s", x->kernels[k].name,
                         insn->line, (int)strcspn(insn->text, ";\n"), insn->text);
        }
    }
    return never;
}
