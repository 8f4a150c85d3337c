/* python.h - everything the backend asks of the interpreter. Implemented in bind.cpp, so that
 * no other file includes Python and none can touch it by accident. */
#pragma once

namespace commd
{

/* A commd_interrupt_fn: non-zero when Ctrl-C was pressed and its exception is now pending. */
int check_signals(void *);
/* Throws the exception that check_signals() left pending; it says so once. _any: if there is one,
 * for who has a code that can also mean something else, or none; it costs nothing if not. */
void raise_pending_any();
[[noreturn]] void raise_pending();

/* Releases the GIL for its lifetime, if this thread holds it. */
class GilRelease
{
  public:
    GilRelease();
    ~GilRelease();
    GilRelease(const GilRelease &) = delete;
    GilRelease &operator=(const GilRelease &) = delete;

  private:
    void *state_;
};

} // namespace commd
