package collective_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"vnic.dev/vnic/collective"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/plain"
	"vnic.dev/vnic/internal/testkit"
)

// add runs one rank of two, and returns the sums of both ranks' numbers.
func add(ctx context.Context, rank int, addrs [2]netip.AddrPort) (sums []int32, err error) {
	gpu, err := plain.NewGPU(8 << 20)
	if err != nil {
		return nil, err
	}
	defer gpu.Close()
	dev, err := plain.New(plain.Options{GPUs: []*plain.GPU{gpu}}) // or a device of package guest or devmem/kernel
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	data, err1 := dev.Register(0, 0, 1<<20)
	pool, err2 := dev.Register(0, 1<<20, 4<<20)    // for received data
	scratch, err3 := dev.Register(0, 5<<20, 1<<20) // for a chunk, before it is added
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	for i := range 8 { // in place of the result of a training step
		binary.LittleEndian.PutUint32(gpu.Bytes()[4*i:], uint32(10*rank+i))
	}
	ring, err := collective.Join(ctx, collective.Config{Rank: rank, Ranks: 2, Device: dev,
		Memory: plain.NewMemory(gpu), Queue: 1, Pool: pool, Scratch: scratch, Listen: addrs[rank], Next: addrs[1-rank]})
	if err != nil {
		return nil, err
	}
	defer ring.Close()
	if err := ring.AllReduce(ctx, devmem.Int32, data, 0, 8); err != nil {
		return nil, err // a *collective.Error names the neighbour and the step
	}
	for i := range 8 {
		sums = append(sums, int32(binary.LittleEndian.Uint32(gpu.Bytes()[4*i:])))
	}
	s := ring.Stats()
	fmt.Printf("rank %d: sent %d bytes, received %d, in host memory %d\n", rank, s.Sent, s.Received, s.Linear)
	return sums, nil
}

// Two ranks in one process; on a real ring each rank has its machine.
func Example() {
	here, _ := testkit.Loopback() // an address of this machine
	addrs := [2]netip.AddrPort{netip.AddrPortFrom(here, 5301), netip.AddrPortFrom(here, 5302)}
	var sums [2][]int32
	var work sync.WaitGroup
	for rank := range sums {
		work.Go(func() {
			var err error
			if sums[rank], err = add(context.Background(), rank, addrs); err != nil {
				fmt.Println(rank, err)
			}
		})
	}
	work.Wait()
	fmt.Println(sums[0], sums[1])
	// Unordered output:
	// rank 0: sent 32 bytes, received 32, in host memory 0
	// rank 1: sent 32 bytes, received 32, in host memory 0
	// [10 12 14 16 18 20 22 24] [10 12 14 16 18 20 22 24]
}
