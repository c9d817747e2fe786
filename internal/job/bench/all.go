package bench

import (
	"fmt"
	"os/exec"
)

// base is the network with which larger ones are compared (scale).
var base = shape{ports: 2, queues: 1, rules: 1}

// All returns the measurements, in the table's order.
func All() (list []Measurement) {
	add := func(name, unit, about, yardstick string, open openFunc) *Measurement {
		list = append(list, Measurement{Name: name, Unit: unit, About: about, Yardstick: yardstick, open: open})
		return &list[len(list)-1]
	}
	add("memcpy-hot", GBps, "copies of 64 KiB in cache", "", copies(hotLen))
	add("memcpy-cold", GBps, "copies of 64 KiB through 128 MiB", "", copies(coldLen))
	for _, size := range []int{64, 512, 1514, 9014, 64 << 10} {
		const together = "the plain loop and both rings' other ends on one thread"
		name, frames := inKiB(size, "k", ""), "frames of "+bytesName(size)
		add("worker-"+name, NsFrame, "processor time of a transmit queue's worker, "+frames,
			"a plain loop over two descriptor rings", rounds(size))
		add("ring-"+name, NsFrame, "from ring to ring, kept full, "+frames, together, ring(size, 0))
		add("poll-"+name, NsFrame, "the same, by a thread that polls (serve --poll 1), "+frames, together, ring(size, 1))
	}
	const copyHot, copyCold = "memcpy of as much, 1 MiB to 8 MiB", "memcpy of as much, 128 MiB to 128 MiB"
	add("gpu-direct-hot", GBps, "GPU to GPU, driver to driver, frames of 64 KiB, from 1 MiB", copyHot, gpuDirect(hot))
	add("gpu-direct-cold", GBps, "the same, from 128 MiB", copyCold, gpuDirect(cold))
	add("gpu-tcp-hot", GBps, "GPU to GPU by TCP, segments of 64 KiB, from 1 MiB", copyHot, gpuTCP(hot, 1500, true))
	add("gpu-tcp-cold", GBps, "the same, from 128 MiB", copyCold, gpuTCP(cold, 1500, true))
	for _, mtu := range []int{1500, 4096, 9000} {
		add(fmt.Sprint("mtu-", mtu), GBps, fmt.Sprint("GPU to GPU by TCP, segments of MTU ", mtu), copyHot,
			gpuTCP(hot, mtu, false))
	}
	add("mtu-64k", GBps, "GPU to GPU by TCP, segments of 64 KiB, MTU 9000", copyHot, gpuTCP(hot, 9000, true))
	for _, n := range []int{2, 8} {
		add(fmt.Sprint("queues-", n), NsFrame, fmt.Sprintf("worker, 64 B, flows on %d queues", n), "1 queue",
			scale(shape{ports: 2, queues: n, rules: 1}))
	}
	for _, n := range []int{8, 64} {
		add(fmt.Sprint("ports-", n), NsFrame, fmt.Sprintf("worker, 64 B, to %d ports in turn", n-1), "2 ports",
			scale(shape{ports: n, queues: 1, rules: 1}))
	}
	for _, n := range []int{32, 1024} {
		add(fmt.Sprint("rules-", n), NsFrame, fmt.Sprintf("worker, 64 B, receiver with %d flow rules", n), "1 rule",
			scale(shape{ports: 2, queues: 1, rules: n}))
	}
	const out, in = "guest's stack to a TCP socket of this machine, by the gateway", "the other way"
	const sockets = "the same between two sockets over loopback"
	add("gateway-out", GBps, out, sockets, toHost(true, overLoopback))
	add("gateway-in", GBps, in, sockets, toHost(false, overLoopback))
	for _, x := range []struct {
		name              string
		size, burst, poll int
	}{{"64", 64, 256, 1}, {"64-32", 64, 32, 1}, {"64-asleep", 64, 256, 0}, {"1514", 1518, 256, 1},
		{"1514-32", 1518, 32, 1}} {
		mode := "a thread that polls"
		if x.poll == 0 {
			mode = "threads that sleep"
		}
		add("testpmd-"+x.name, NsFrame, fmt.Sprintf("frames of %s that testpmd has circle, bursts of %d, %s",
			bytesName(x.size), x.burst, mode), "the same around DPDK's vhost (testpmd)",
			circling(x.size, x.burst, x.poll)).find = findTestpmd
	}
	const passt = "the same by passt over vhost-user, MTU 65520"
	add("passt-out", GBps, out, passt, toHost(true, throughPasst)).find = findPasst
	add("passt-in", GBps, in, passt, toHost(false, throughPasst)).find = findPasst
	add("slirp", GBps, "slirp as the gateway", "ours", nil).find = findSlirp
	return list
}

func findSlirp() string {
	path, err := exec.LookPath("slirp4netns")
	if err != nil {
		return "not installed"
	}
	return path + " has no vhost-user: beside a guest of QEMU's it is measured by test/25-gateways.sh"
}

// bytesName formats a number of bytes: "64 KiB", "1500 B".
func bytesName(n int) string { return inKiB(n, " KiB", " B") }
