package gve

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/vfiotest"
	"vnic.dev/vnic/vfiouser"
)

// translated maps single pages for the NIC of guest g through the vfio-user client cl, as QEMU does for a guest's
// IOMMU. Every other page is of the GPU's memory. Each mapping has its own address.
type translated struct {
	g  *suiteGuest
	cl *vfiotest.Client
}

const (
	translatedMaps = 10_000
	translatedRAM  = 8 << 20 // offset in the RAM's file of the first page that is mapped
	translatedSpan = 1 << 10 // pages of each file that are mapped, each of them several times
)

// iova returns the address of mapping i for the NIC; mappings are not adjacent.
func (*translated) iova(i int) uint64 { return 1<<41 + uint64(i)<<13 }

// file returns descriptor and offset of the file page that mapping i maps, and the page's memory in this process.
func (x *translated) file(i int) (fd int, off uint64, page []byte) {
	off = uint64(i/2%translatedSpan) << 12
	if i%2 == 1 {
		return x.g.GPU.FD(), off, x.g.GPUMem[off:][:4096]
	}
	off += translatedRAM
	return x.g.FD, off, x.g.RAM[off:][:4096]
}

func (x *translated) add(i int) error {
	fd, off, _ := x.file(i)
	return x.cl.MapRange(x.iova(i), 4096, fd, off, true)
}

func (x *translated) remove(i int) error { return x.cl.Unmap(x.iova(i), 4096) }

// receive posts the page of mapping i as a receive buffer, sends a frame from another guest, and reports whether the
// buffer came back as bad. It checks that a bad buffer was not written to, and that a good one has the frame.
func (x *translated) receive(from *suiteGuest, i int) (bad bool) {
	g := x.g
	g.Helper()
	_, _, page := x.file(i)
	for k := range page {
		page[k] = poison
	}
	f := tcp(from, g, 1+i%1400)
	d := g.rxd[0]
	d.post(x.iova(i))
	g.dev.rx[0].doorbell(d.posted & d.mask) // not by WriteRegion: another goroutine serves the device
	from.Next = 4 << 20                     // the sender reuses its memory
	from.Send(0, f)
	var c rxCompl
	testkit.Eventually(g, "a frame is there", func() bool { return d.poll(&c) })
	n := len(f.Header)
	switch {
	case c.bad && strings.Trim(string(page), string([]byte{poison})) != "":
		g.Errorf("map %d: a buffer that is bad was written to", i)
	case !c.bad && (int(c.length) != n+len(f.Payload) || string(page[n:c.length]) != string(f.Payload)):
		g.Errorf("map %d: %d bytes have come, or others than were sent", i, c.length)
	}
	return c.bad
}

// mappings counts this process's mappings of a file.
func mappings(t *testing.T, fd int) (n int) {
	var st unix.Stat_t
	testkit.OK(t, unix.Fstat(fd, &st))
	f := testkit.Must(os.Open("/proc/self/maps"))(t)
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if strings.Contains(s.Text(), fmt.Sprintf(" %d ", st.Ino)) {
			n++
		}
	}
	return n
}

// Each frame goes to the mapped page, and a buffer in an unmapped page comes back as bad.
//
// Invariant: nic/gve: 10,000 IOMMU mappings are added and removed under traffic; each file is
// mapped once, and access to removed mappings is an error.
func TestTenThousandMapsUnderTraffic(t *testing.T) {
	testkit.Slow(t)
	w := newWorld(t)
	g := w.Bad
	near, far, err := vfiotest.Pair()
	g.OK(err)
	served := make(chan error, 1)
	go func() { served <- vfiouser.NewServer(g.dev, g.space, nil).Serve(context.Background(), far) }()
	x := &translated{g: g, cl: testkit.Must(vfiotest.Connect(near))(t)}
	g.startRx(0, false)
	before := [2]int{mappings(t, g.FD), mappings(t, g.GPU.FD())}
	regions := len(g.space.Regions())
	order := rand.New(rand.NewPCG(1, 2)).Perm(translatedMaps)

	// through calls do for the mappings of in, one after another until one fails. Meanwhile it receives frames, at least
	// 100: frame k in the page of mapping use(k).
	through := func(what string, in []int, do func(i int) error, use func(k int) int) {
		t.Helper()
		var client sync.WaitGroup
		done := make(chan struct{})
		client.Go(func() {
			defer close(done)
			for _, i := range in {
				if err := do(i); err != nil {
					t.Errorf("%s %d: %v", what, i, err)
					return
				}
			}
		})
		frames := 0
		for over := false; !over || frames < 100; frames++ {
			if i := use(frames); x.receive(w.A, i) {
				t.Fatalf("%s: the buffer of map %d, which is there, is bad", what, i)
			}
			select {
			case <-done:
				over = true
			default:
			}
		}
		client.Wait()
		t.Logf("%s: %d messages, %d frames meanwhile", what, len(in), frames)
	}
	const first, kept = 100, 400
	for _, i := range order[:first] {
		g.OK(x.add(i))
	}
	through("map", order[first:], x.add, func(k int) int { return order[k%first] })
	testkit.Equal(t, "regions", len(g.space.Regions()), regions+translatedMaps)
	testkit.Equal(t, "mappings of RAM and GPU", [2]int{mappings(t, g.FD), mappings(t, g.GPU.FD())}, before)
	for k := range kept {
		if i := order[len(order)-1-k]; x.receive(w.A, i) {
			t.Fatalf("map %d: its buffer is bad", i)
		}
	}

	gone := order[:translatedMaps-kept]
	mem := newMemory(g.space)
	through("unmap", gone, func(i int) error {
		if err := x.remove(i); err != nil {
			return err
		}
		if err := mem.has(x.iova(i), 1); !errors.Is(err, dma.ErrUnmapped) {
			return fmt.Errorf("after the answer: %v", err)
		}
		return nil
	}, func(k int) int { return order[translatedMaps-1-k%kept] })
	for _, i := range gone[:50] {
		if !x.receive(w.A, i) {
			t.Fatalf("map %d has gone, and a frame came to it", i)
		}
	}
	for _, i := range order[translatedMaps-kept:] {
		g.OK(x.remove(i))
	}
	testkit.Equal(t, "regions", len(g.space.Regions()), regions)
	g.OK(x.cl.Close())
	g.OK(<-served)
}
