/* commctl_made.c - tables that commctl makes of commd's answers. */
#include <stdio.h>

#include "client/ctl/commctl.h"

void made_init(struct made *made, const char *name, struct msg_column *columns, uint32_t ncolumns,
               uint32_t nrows)
{
    size_t n = (size_t)ncolumns * nrows + 1;

    *made = (struct made){.cells = calloc(n, sizeof(*made->cells)),
                          .numbers = calloc(n, sizeof(*made->numbers))};
    if (!made->numbers)
        free(steal_ptr(made->cells));
    made->table = (struct msg_table){
        .ncolumns = ncolumns, .nrows = nrows, .columns = columns, .cells = made->cells};
    snprintf(made->table.name, sizeof(made->table.name), "%s", name);
}

void made_text(struct made *made, const char *text)
{
    assert(made->at < made->table.ncolumns * made->table.nrows);
    if (made->cells)
        made->cells[made->at] = (char *)text; /* only read */
    made->at++;
}

void made_copy(struct made *made, const char *text)
{
    char *cell = made->cells ? made->numbers[made->at] : NULL;

    if (cell)
        snprintf(cell, sizeof(made->numbers[0]), "%s", text);
    made_text(made, cell);
}

void made_number(struct made *made, double number, const char *format)
{
    char text[sizeof(made->numbers[0])] = "";

    if (number >= 0)
        snprintf(text, sizeof(text), format, number);
    made_copy(made, text);
}

void made_flag(struct made *made, bool flag)
{
    made_text(made, flag ? "true" : "false");
}

void made_fit(const struct show *show, struct made *made, const char *const *spare, unsigned nspare)
{
    assert(made->at == made->table.ncolumns * made->table.nrows);
    if (made->cells)
        fit_columns(show, &made->table, spare, nspare);
    made->at = made->table.ncolumns * made->table.nrows;
}

bool made_show(const struct show *show, struct made *made)
{
    struct msg_tables tables = {.ntables = 1, .tables = &made->table};
    bool shown = false;

    assert(made->at % made->table.ncolumns == 0); /* no cell is missing */
    made->table.nrows = made->at / made->table.ncolumns;
    if (made->cells)
        shown = show_tables(show, &tables);
    else
        complain("%s", strerror(ENOMEM));
    free(made->cells);
    free(made->numbers);
    return shown;
}
