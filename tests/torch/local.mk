# tests/torch/: programs that need torch; ./quickstart test runs them
EXTRA_DIST += tests/torch/conformance.py tests/torch/suite_host.py tests/torch/suite_tests.py \
	tests/torch/expected/gloo-4.txt tests/torch/expected/gloo-8.txt \
	tests/torch/expected/commd-4.txt tests/torch/expected/commd-8.txt \
	tests/torch/expected/commd-4-spawned.txt tests/torch/expected/gpu-4.txt \
	tests/torch/expected/gpu-8.txt tests/torch/expected/gpu-not.txt tests/torch/gpu_nodes.py
EXTRA_DIST += tests/torch/test_why.py tests/torch/run_programs.py tests/torch/program_host.py \
	tests/torch/contract.py tests/torch/edited.py \
	tests/torch/torchft_example.py \
	tests/torch/programs/accumulation.py \
	tests/torch/programs/asynchronous.py \
	tests/torch/programs/at_exit.py \
	tests/torch/programs/average_gradients.py \
	tests/torch/programs/checkpoint.py \
	tests/torch/programs/checks.py \
	tests/torch/programs/collectives.py \
	tests/torch/programs/comm_hooks.py \
	tests/torch/programs/data_and_model.py \
	tests/torch/programs/ddp_recovered.py \
	tests/torch/programs/ddp_sampler.py \
	tests/torch/programs/destroyed.py \
	tests/torch/programs/distributed_checkpoint.py \
	tests/torch/programs/failures.py \
	tests/torch/programs/forked.py \
	tests/torch/programs/fsdp1.py \
	tests/torch/programs/fsdp1_recovered.py \
	tests/torch/programs/fsdp2.py \
	tests/torch/programs/fsdp_recovered.py \
	tests/torch/programs/functional.py \
	tests/torch/programs/gpu_interrupted.py \
	tests/torch/programs/gpu_lost_rank.py \
	tests/torch/programs/gpu_operations.py \
	tests/torch/programs/gpu_section.py \
	tests/torch/programs/hybrid.py \
	tests/torch/programs/init_methods.py \
	tests/torch/programs/local_sgd.py \
	tests/torch/programs/lost_rank.py \
	tests/torch/programs/many_groups.py \
	tests/torch/programs/mixture_of_experts.py \
	tests/torch/programs/model_parallel.py \
	tests/torch/programs/models.py \
	tests/torch/programs/no_destroy.py \
	tests/torch/programs/node_restarted.py \
	tests/torch/programs/objects.py \
	tests/torch/programs/pipeline_schedules.py \
	tests/torch/programs/recorded.py \
	tests/torch/programs/recovered.py \
	tests/torch/programs/reconfigured.py \
	tests/torch/programs/rejoined.py \
	tests/torch/programs/replaced.py \
	tests/torch/programs/restarted.py \
	tests/torch/programs/ring_all_reduce.py \
	tests/torch/programs/ring_attention.py \
	tests/torch/programs/shard_restored.py \
	tests/torch/programs/shrunk.py \
	tests/torch/programs/spawned.py \
	tests/torch/programs/tensor_parallel.py \
	tests/torch/programs/threads.py \
	tests/torch/programs/torchft_group.py \
	tests/torch/programs/torchft_training.py \
	tests/torch/programs/uneven_inputs.py \
	tests/torch/programs/zero_optimizer.py
# a device of torch over tests/fakecuda
EXTRA_DIST += tests/torch/fakedevice/fakegpu.py tests/torch/fakedevice/fakegpu.cpp \
	tests/torch/fakedevice/fakegpu.h tests/torch/fakedevice/allocator.cpp \
	tests/torch/fakedevice/guard.cpp tests/torch/fakedevice/kernels.cpp
