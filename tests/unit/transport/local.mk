# tests/unit/transport/: the engine, its schedules and its fabrics.
if HAVE_CMOCKA
unit_transport = tests/unit/transport/test_confine tests/unit/transport/test_engine_flow \
	tests/unit/transport/test_engine_hold \
	tests/unit/transport/test_engine_inbox tests/unit/transport/test_engine_send \
	tests/unit/transport/test_engine_turn tests/unit/transport/test_fabric \
	tests/unit/transport/test_fair tests/unit/transport/test_flow \
	tests/unit/transport/test_schedule tests/unit/transport/test_seal_threads
check_PROGRAMS += $(unit_transport)
TESTS += $(unit_transport)

tests_unit_transport_test_confine_SOURCES = tests/unit/transport/test_confine.c \
	transport/process/confine.c
tests_unit_transport_test_confine_LDADD = libcommd-fabric.la libcommd-shm.la $(CMOCKA_LIBS)

tests_unit_transport_test_engine_flow_SOURCES = tests/unit/transport/test_engine_flow.c \
	tests/lib/cluster.c tests/lib/cluster.h
tests_unit_transport_test_engine_flow_LDADD = $(in_one_process) $(CMOCKA_LIBS)

tests_unit_transport_test_engine_hold_SOURCES = tests/unit/transport/test_engine_hold.c \
	tests/lib/cluster.c tests/lib/cluster.h
tests_unit_transport_test_engine_hold_LDADD = $(in_one_process) $(CMOCKA_LIBS)

tests_unit_transport_test_engine_inbox_SOURCES = tests/unit/transport/test_engine_inbox.c \
	tests/lib/cluster.c tests/lib/cluster.h
tests_unit_transport_test_engine_inbox_LDADD = $(in_one_process) $(CMOCKA_LIBS)

tests_unit_transport_test_engine_send_SOURCES = tests/unit/transport/test_engine_send.c \
	tests/lib/cluster.c tests/lib/cluster.h
tests_unit_transport_test_engine_send_LDADD = $(in_one_process) $(CMOCKA_LIBS)

# Includes engine_main.c.
tests_unit_transport_test_engine_turn_SOURCES = tests/unit/transport/test_engine_turn.c \
	transport/process/control.c transport/process/launcher.c tests/lib/cluster.c \
	transport/process/confine.c tests/lib/cluster.h
tests_unit_transport_test_engine_turn_LDADD = libcommd-launch.la $(in_one_process) $(CMOCKA_LIBS)

# The same contract over every fabric.
tests_unit_transport_test_fabric_SOURCES = tests/unit/transport/test_fabric.c \
	tests/unit/transport/test_fabric_net.c tests/unit/transport/test_fabric_life.c \
	tests/unit/transport/test_fabric_links.c tests/unit/transport/test_fabric_tcp.c \
	tests/unit/transport/test_fabric_express.c tests/unit/transport/test_fabric_mend.c \
	tests/unit/transport/test_fabric_keys.c tests/unit/transport/test_fabric_greet.c \
	tests/unit/transport/test_fabric_old.c tests/unit/transport/test_fabric_aead.c \
	tests/unit/transport/test_fabric_sealed.c tests/unit/transport/test_fabric_threads.c \
	tests/unit/transport/test_fabric_ucx.c tests/unit/transport/fabric_raw.c \
	tests/unit/transport/fabric_raw.h tests/unit/transport/fabric_sides.c \
	tests/unit/transport/fabric_sides.h tests/lib/heap_has.h
tests_unit_transport_test_fabric_CPPFLAGS = $(AM_CPPFLAGS) $(UCX_CFLAGS)
tests_unit_transport_test_fabric_LDADD = libcommd-test-fabric.la libcommd-fabric.la \
	libcommd-launch.la libcommd-shm.la $(CMOCKA_LIBS)

tests_unit_transport_test_fair_SOURCES = tests/unit/transport/test_fair.c
tests_unit_transport_test_fair_LDADD = libcommd-schedule.la $(CMOCKA_LIBS)

tests_unit_transport_test_flow_SOURCES = tests/unit/transport/test_flow.c
tests_unit_transport_test_flow_LDADD = libcommd-schedule.la $(CMOCKA_LIBS)

tests_unit_transport_test_schedule_SOURCES = tests/unit/transport/test_schedule.c
tests_unit_transport_test_schedule_LDADD = libcommd-schedule.la $(CMOCKA_LIBS)

tests_unit_transport_test_seal_threads_SOURCES = tests/unit/transport/test_seal_threads.c
tests_unit_transport_test_seal_threads_LDADD = libcommd-fabric.la libcommd-launch.la \
	libcommd-shm.la $(CMOCKA_LIBS)
endif
