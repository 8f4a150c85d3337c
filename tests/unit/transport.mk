# tests/unit/transport.mk: tests of this room
if HAVE_CMOCKA
check_PROGRAMS += test_schedule
TESTS += test_schedule

test_schedule_SOURCES = tests/unit/test_schedule.c
test_schedule_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
test_schedule_LDADD = libcommd-schedule.la $(CMOCKA_LIBS)
endif
