/* commctl_made.c - tables that commctl makes of commd's answers. */
#include <stdio.h>

#include "client/ctl/commctl.h"

bool made_begin(struct made *made, const char *name, struct msg_column *columns, uint32_t ncolumns,
                uint32_t nrows)
{
    size_t n = (size_t)ncolumns * nrows + 1;

    *made = (struct made){.cells = calloc(n, sizeof(*made->cells)),
                          .numbers = calloc(n, sizeof(*made->numbers))};
    made->table = (struct msg_table){
        .ncolumns = ncolumns, .nrows = nrows, .columns = columns, .cells = made->cells};
    snprintf(made->table.name, sizeof(made->table.name), "%s", name);
    return made->cells && made->numbers;
}

void made_free(struct made *made)
{
    free(made->cells);
    free(made->numbers);
}

void made_text(struct made *made, const char *text)
{
    assert(made->at < made->table.ncolumns * made->table.nrows);
    made->cells[made->at++] = (char *)text; /* only read */
}

void made_copy(struct made *made, const char *text)
{
    char *cell = made->numbers[made->at];

    snprintf(cell, sizeof(made->numbers[0]), "%s", text);
    made_text(made, cell);
}

void made_number(struct made *made, double number, const char *format)
{
    char *cell = made->numbers[made->at];

    if (number >= 0)
        snprintf(cell, sizeof(made->numbers[0]), format, number);
    made_text(made, cell);
}

bool made_show(const struct show *show, struct made *made)
{
    struct msg_tables tables = {.ntables = 1, .tables = &made->table};

    assert(made->at == made->table.ncolumns * made->table.nrows); /* no cell is missing */
    return show_tables(show, &tables);
}
