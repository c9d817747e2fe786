package bench

import "fmt"

// All are the measurements, in the order of the table.
func All() (list []Measurement) {
	list = append(list, memcpy("memcpy-hot", "copies of 64 KiB in cache", hotLen),
		memcpy("memcpy-cold", "copies of 64 KiB through 128 MiB", coldLen))
	for _, size := range []int{64, 512, 1514, 9014, 64 << 10} {
		list = append(list, ringAndWorker(size)...)
	}
	const copyHot, copyCold = "memcpy of as much, 1 MiB to 8 MiB", "memcpy of as much, 128 MiB to 128 MiB"
	list = append(list,
		gpuDirect("gpu-direct-hot", "GPU to GPU, driver to driver, frames of 64 KiB, from 1 MiB", copyHot, hot),
		gpuDirect("gpu-direct-cold", "the same, from 128 MiB", copyCold, cold),
		gpuTCP("gpu-tcp-hot", "GPU to GPU by TCP, segments of 64 KiB, from 1 MiB", copyHot, hot, 1500, true),
		gpuTCP("gpu-tcp-cold", "the same, from 128 MiB", copyCold, cold, 1500, true))
	for _, mtu := range []int{1500, 4096, 9000} {
		list = append(list, gpuTCP(fmt.Sprintf("mtu-%d", mtu),
			fmt.Sprintf("GPU to GPU by TCP, segments of MTU %d", mtu), copyHot, hot, mtu, false))
	}
	list = append(list, gpuTCP("mtu-64k", "GPU to GPU by TCP, segments of 64 KiB, MTU 9000", copyHot, hot, 9000, true))
	base := shape{ports: 2, queues: 1, rules: 1}
	for _, n := range []int{2, 8} {
		many := base
		many.queues = n
		list = append(list, scale(fmt.Sprintf("queues-%d", n),
			fmt.Sprintf("worker, 64 B, flows on %d queues", n), "1 queue", many, base))
	}
	for _, n := range []int{8, 64} {
		many := base
		many.ports = n
		list = append(list, scale(fmt.Sprintf("ports-%d", n),
			fmt.Sprintf("worker, 64 B, to %d ports in turn", n-1), "2 ports", many, base))
	}
	for _, n := range []int{32, 1024} {
		many := base
		many.rules = n
		list = append(list, scale(fmt.Sprintf("rules-%d", n),
			fmt.Sprintf("worker, 64 B, receiver with %d flow rules", n), "1 rule", many, base))
	}
	return append(list,
		toHost("gateway-out", "guest's stack to a TCP socket of this machine, by the gateway", true),
		toHost("gateway-in", "the other way", false),
		testpmdRow("testpmd-64", 64, 256, 1), testpmdRow("testpmd-64-32", 64, 32, 1),
		testpmdRow("testpmd-64-asleep", 64, 256, 0),
		testpmdRow("testpmd-1514", 1518, 256, 1), testpmdRow("testpmd-1514-32", 1518, 32, 1),
		passtRow("passt-out", "guest's stack to a TCP socket of this machine, by the gateway", true),
		passtRow("passt-in", "the other way", false),
		external("slirp", GBps, "slirp as the gateway", " has no vhost-user: beside a guest of QEMU's it is measured by "+
			"test/25-gateways.sh", "slirp4netns"))
}
