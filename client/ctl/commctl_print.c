/* commctl_print.c - tables for people and for programs, both by libsmartcols.
 *
 * For people: aligned columns under headings, or a list of "Title  value" lines where a table
 * has one row by nature; "-" where nothing is known; an empty table is said in words.
 * For programs: {"name": [{"key": value, ...}, ...]}, one member per table, with numbers and
 * booleans as such and null where nothing is known. The codec has checked that number cells
 * are JSON numbers, so they go out as they are. */
#include <libsmartcols.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/cells.h"
#include "client/ctl/commctl.h"

static void table_unrefp(struct libscols_table **table)
{
    scols_unref_table(*table);
}

static bool is_true(const char *cell)
{
    return !strcmp(cell, "true") || !strcmp(cell, "yes") || !strcmp(cell, "1");
}

enum {
    HUMAN_MAX = 24,
    GAP = 2,      /* between columns */
    WRAPPED = 12, /* the last column goes on below: so wide it is to be read */
};

/* In the largest unit of which there is one at least: "1.7 GB", "21 min". */
static const char *in_largest_unit(const char *cell, const char *const *units, const double *steps,
                                   unsigned n, char buf[HUMAN_MAX])
{
    double value = strtod(cell, NULL);
    unsigned i = 0;

    for (; i + 1 < n && value >= steps[i]; i++)
        value /= steps[i];
    if (i == 0)
        snprintf(buf, HUMAN_MAX, "%.16s %s", cell, units[0]);
    else
        snprintf(buf, HUMAN_MAX, value < 10 ? "%.1f %s" : "%.0f %s", value, units[i]);
    return buf;
}

/* For people: @cell of a column whose title ends in a unit, such as "SENT [bytes]". */
static const char *humanly(const char *title, const char *cell, char buf[HUMAN_MAX])
{
    static const char *const bytes[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    static const char *const rates[] = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
    static const char *const counts[] = {"/s", "k/s", "M/s", "G/s", "T/s"};
    static const char *const times[] = {"us", "ms", "s", "min", "h", "d"};
    static const double thousands[] = {1000, 1000, 1000, 1000, 1000, 1000};
    static const double spans[] = {1000, 1000, 60, 60, 24, 0};
    const char *unit = strrchr(title, '[');

    if (!unit)
        return cell;
    if (!strcmp(unit, "[bytes]"))
        return in_largest_unit(cell, bytes, thousands, ARRAY_LEN(bytes), buf);
    if (!strcmp(unit, "[bytes/s]"))
        return in_largest_unit(cell, rates, thousands, ARRAY_LEN(rates), buf);
    if (!strcmp(unit, "[/s]"))
        return in_largest_unit(cell, counts, thousands, ARRAY_LEN(counts), buf);
    for (unsigned i = 0; i < 3; i++)
        if (unit[1] == times[i][0] && unit[1 + strlen(times[i])] == ']')
            return in_largest_unit(cell, times + i, spans + i, ARRAY_LEN(times) - i, buf);
    return cell;
}

/* What stands in the cell; @buf may be used for it. */
static const char *cell_text(const struct show *show, const struct msg_column *column,
                             const char *cell, char buf[HUMAN_MAX])
{
    if (!*cell)
        return show->json ? "" : "-";
    if (column->type == MSG_CELL_NUMBER && !show->json)
        return humanly(column->title, cell, buf);
    if (column->type != MSG_CELL_BOOL)
        return cell;
    if (show->json)
        return is_true(cell) ? "true" : "false";
    return is_true(cell) ? "yes" : "no";
}

/* Without the unit. */
static void title_text(const struct msg_column *column, char ret[MSG_NAME_MAX])
{
    const char *unit = column->type == MSG_CELL_NUMBER ? strstr(column->title, " [") : NULL;

    snprintf(ret, MSG_NAME_MAX, "%.*s",
             unit ? (int)(unit - column->title) : (int)strlen(column->title), column->title);
}

static unsigned text_width(const char *text)
{
    unsigned n = 0;

    for (; *text; text++)
        n += ((uint8_t)*text & 0xc0) != 0x80; /* not of the bytes that go on with a character */
    return n;
}

static unsigned column_width(const struct show *show, const struct msg_table *t, uint32_t i,
                             bool *ret_empty)
{
    char buf[MSG_NAME_MAX];
    unsigned width;

    title_text(&t->columns[i], buf);
    width = text_width(buf);
    *ret_empty = true;
    for (uint32_t row = 0; row < t->nrows; row++) {
        const char *cell = t->cells[(size_t)row * t->ncolumns + i];

        width = MAX(width, text_width(cell_text(show, &t->columns[i], cell, buf)));
        *ret_empty &= !*cell;
    }
    return i + 1 == t->ncolumns ? MIN(width, (unsigned)WRAPPED) : width;
}

static void drop_column(struct msg_table *t, uint32_t column)
{
    char **to = t->cells;

    for (size_t i = 0; i < (size_t)t->nrows * t->ncolumns; i++)
        if (i % t->ncolumns != column)
            *to++ = t->cells[i];
    t->ncolumns--;
    memmove(&t->columns[column], &t->columns[column + 1],
            (t->ncolumns - column) * sizeof(*t->columns));
}

void fit_columns(const struct show *show, struct msg_table *table, const char *const *spare,
                 unsigned nspare)
{
    struct winsize size = {0};
    unsigned total = 0;
    bool empty;

    if (show->json || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) || !size.ws_col)
        return;
    for (uint32_t i = 0; i < table->ncolumns; i++)
        total += (i ? GAP : 0) + column_width(show, table, i, &empty);
    for (unsigned turn = 0; turn < 2; turn++)
        for (unsigned k = 0; k < nspare && total > size.ws_col; k++) {
            uint32_t i = cells_column(table, spare[k]);
            unsigned width;

            if (i == table->ncolumns)
                continue;
            width = column_width(show, table, i, &empty);
            if (turn == 0 && !empty)
                continue; /* those first in which nothing stands */
            total -= width + GAP;
            drop_column(table, i);
        }
}

static int add_columns(const struct show *show, const struct msg_table *table,
                       struct libscols_table *out)
{
    for (uint32_t i = 0; i < table->ncolumns; i++) {
        const struct msg_column *column = &table->columns[i];
        bool number = column->type == MSG_CELL_NUMBER;
        /* a text, which is the last column, goes on below where the terminal is narrow */
        int flags = number ? SCOLS_FL_RIGHT : i + 1 == table->ncolumns ? SCOLS_FL_WRAP : 0;
        char title[MSG_NAME_MAX];
        struct libscols_column *c;

        title_text(column, title);
        c = scols_table_new_column(out, show->json ? column->key : title, 0,
                                   show->json ? 0 : flags);

        if (!c)
            return -ENOMEM;
        /* NUMBER prints the cell raw, or null when it is empty: what a bool wants as well,
         * for smartcols' BOOLEAN takes the word "false" and an unknown for true and false. */
        scols_column_set_json_type(c, column->type == MSG_CELL_STRING ? SCOLS_JSON_STRING
                                                                      : SCOLS_JSON_NUMBER);
    }
    return 0;
}

const char *utc_text(int64_t seconds, char buf[32])
{
    time_t then = (time_t)seconds;
    struct tm tm;

    buf[0] = 0;
    if (gmtime_r(&then, &tm))
        strftime(buf, 32, "%Y-%m-%dT%H:%M:%S", &tm);
    return buf;
}

const char *time_ago(uint64_t ms, char buf[32])
{
    char text[32];

    snprintf(buf, 32, "%.30sZ", utc_text((int64_t)time(NULL) - (int64_t)((ms + 500) / 1000), text));
    return buf;
}

void print_json(const char *before, const char *text)
{
    printf("%s\"", before);
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else if ((unsigned char)*text < ' ')
            printf("\\u%04x", (unsigned char)*text);
        else
            putchar(*text);
    putchar('"');
}

const char *colour_of(const char *key, const char *word)
{
    static const char *const good[] = {"ready",   "up",        "self",         "open",
                                       "HEALTHY", "RECOVERED", "COMPUTE_BOUND"};
    static const char *const so_so[] = {"degraded",   "draining", "linking",   "joining",
                                        "starting",   "stopping", "SLOW_RANK", "SLOW_LINK",
                                        "restarting", "resuming"};

    if ((strcmp(key, "state") && strcmp(key, "verdict")) || !*word || !strcmp(word, "ended"))
        return NULL;
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        if (!strcmp(good[i], word))
            return "green";
    for (size_t i = 0; i < ARRAY_LEN(so_so); i++)
        if (!strcmp(so_so[i], word))
            return "yellow";
    return "red";
}

/* Without memory it stays without colour. */
static void paint(const struct show *show, struct libscols_line *line, uint32_t column,
                  const char *key, const char *cell)
{
    const char *colour = show->colours ? colour_of(key, cell) : NULL;

    if (colour)
        scols_cell_set_color(scols_line_get_cell(line, column), colour);
}

static int add_rows(const struct show *show, const struct msg_table *table,
                    struct libscols_table *out)
{
    for (uint32_t row = 0; row < table->nrows; row++) {
        struct libscols_line *line = scols_table_new_line(out, NULL);

        if (!line)
            return -ENOMEM;
        for (uint32_t i = 0; i < table->ncolumns; i++) {
            const char *cell = table->cells[(size_t)row * table->ncolumns + i];
            char buf[HUMAN_MAX];
            int r = scols_line_set_data(line, i, cell_text(show, &table->columns[i], cell, buf));

            if (r)
                return r;
            paint(show, line, i, table->columns[i].key, cell);
        }
    }
    return 0;
}

/* Two columns without headings, a line per column of @table. */
static int fill_vertical(const struct show *show, const struct msg_table *table,
                         struct libscols_table *out)
{
    scols_table_enable_noheadings(out, 1);
    if (!scols_table_new_column(out, "key", 0, 0) || !scols_table_new_column(out, "value", 0, 0))
        return -ENOMEM;
    for (uint32_t i = 0; i < table->ncolumns; i++) {
        struct libscols_line *line = scols_table_new_line(out, NULL);
        char title[MSG_NAME_MAX], buf[HUMAN_MAX];
        int r;

        if (!line)
            return -ENOMEM;
        title_text(&table->columns[i], title);
        r = scols_line_set_data(line, 0, title);
        if (!r)
            r = scols_line_set_data(line, 1,
                                    cell_text(show, &table->columns[i], table->cells[i], buf));
        if (r)
            return r;
        paint(show, line, 1, table->columns[i].key, table->cells[i]);
    }
    return 0;
}

static int render(const struct show *show, const struct msg_table *table, char **ret_text)
{
    _cleanup_(table_unrefp) struct libscols_table *out = scols_new_table();
    int r;

    if (!out)
        return -ENOMEM;
    scols_table_enable_json(out, show->json);
    scols_table_enable_colors(out, show->colours);
    scols_table_set_column_separator(out, "  ");
    r = scols_table_set_name(out, table->name);
    if (!r && show->vertical && !show->json && table->nrows == 1) {
        r = fill_vertical(show, table, out);
    } else if (!r) {
        r = add_columns(show, table, out);
        if (!r)
            r = add_rows(show, table, out);
    }
    return r ? r : scols_print_table_to_string(out, ret_text);
}

/* smartcols prints each table as an object of one member: "{\n   ...\n}\n". Here the members of
 * all tables are put into one object. */
static void print_json_member(const char *text, bool first)
{
    const char *begin = strchr(text, '{'), *end = strrchr(text, '}');

    begin = begin ? begin + 1 : text;
    if (!end || end < begin)
        end = text + strlen(text);
    while (end > begin && end[-1] == '\n')
        end--;
    printf("%s%.*s", first ? "{" : ",", (int)(end - begin), begin);
}

static void print_table(const struct msg_table *table, const char *text, bool first)
{
    if (!first)
        putchar('\n');
    if (table->nrows == 0)
        printf("no %s\n", table->name);
    else /* with a newline at the end, which some versions of smartcols leave out */
        printf("%s%s", text, *text && text[strlen(text) - 1] == '\n' ? "" : "\n");
}

bool show_tables(const struct show *show, const struct msg_tables *tables)
{
    for (uint32_t i = 0; i < tables->ntables; i++) {
        _cleanup_(freep) char *text = NULL;
        int r = render(show, &tables->tables[i], &text);

        if (r) {
            complain("cannot print the answer (%s)", strerror(-r));
            return false;
        }
        if (show->json)
            print_json_member(text, i == 0);
        else
            print_table(&tables->tables[i], text, i == 0);
    }
    if (show->json)
        puts(tables->ntables ? "\n}" : "{}");
    return flush_stdout();
}

bool flush_stdout(void)
{
    if (!fflush(stdout) && !ferror(stdout))
        return true;
    complain("cannot write to stdout (%s)", strerror(errno));
    return false;
}

struct order {
    const struct msg_table *table;
    const char *const *keys;
    unsigned nkeys;
};

static int by_keys(const void *a, const void *b, void *arg)
{
    const struct order *o = arg;
    char *const *x = a, *const *y = b;
    int r = 0;

    for (unsigned k = 0; k < o->nkeys && !r; k++) {
        uint32_t i = cells_column(o->table, o->keys[k]);

        if (i < o->table->ncolumns)
            r = strverscmp(x[i] ? x[i] : "", y[i] ? y[i] : "");
    }
    return r;
}

void sort_rows(struct msg_table *table, const char *const *keys, unsigned nkeys)
{
    struct order order = {table, keys, nkeys};

    if (table->nrows && table->ncolumns)
        qsort_r(table->cells, table->nrows, table->ncolumns * sizeof(*table->cells), by_keys,
                &order);
}
