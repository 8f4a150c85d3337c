/* flow.c - see flow.h. Numbers of operations wrap; those of steps do not, and end below 2^30. */
#include "transport/schedule/flow.h"

static bool within(uint32_t c, uint32_t passed)
{
    return c < (uint64_t)passed + FLOW_CREDIT;
}

bool flow_may_send(uint32_t c, uint32_t passed)
{
    return within(c, passed);
}

bool flow_tells(uint32_t before, uint32_t now, uint32_t steps)
{
    uint32_t told = before - before % FLOW_TELL; /* or more */

    assert(before <= now);
    assert(now <= steps);
    return now >= told + FLOW_TELL && steps > told + FLOW_CREDIT;
}

bool flow_may_come(uint32_t op, uint32_t c, uint32_t mine, uint32_t passed)
{
    return op == mine ? within(c, passed) : op == mine + 1 && c < FLOW_AHEAD;
}

bool flow_check_may_come(uint32_t op, uint32_t mine)
{
    return op == mine || op == mine + 1;
}
