package transfer

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/loader"
)

// Operations cover the range exactly once.
func TestOperationsOfAnIO(t *testing.T) {
	seed := uint64(3)
	for _, x := range []IO{
		{Off: 512, Len: 10_000, Size: 4096, Depth: 1, Mem: 100},
		{Len: 4096, Size: 4096, Depth: 4, Write: true},
		{Len: 1, Size: 1 << 20, Depth: 1},
		{Len: 1000, Size: 1, Depth: 1, Random: &seed},
	} {
		next, took, err := x.operations(1 << 20)
		testkit.OK(t, err)
		var list []block.Op
		for o, more := next(); more; o, more = next() {
			list = append(list, o)
		}
		if cap(took) < len(list) {
			t.Errorf("%+v: room for %d times of %d operations", x, cap(took), len(list))
		}
		inOrder := slices.IsSortedFunc(list, func(a, b block.Op) int { return int(a.Off) - int(b.Off) })
		testkit.Equal(t, "in order", inOrder, x.Random == nil)
		slices.SortFunc(list, func(a, b block.Op) int { return int(a.Off) - int(b.Off) })
		off := x.Off
		for _, o := range list {
			if o.Off != off || o.Mem-x.Mem != off-x.Off || o.Len == 0 || o.Len > x.Size || o.Write != x.Write {
				t.Fatalf("%+v: %+v at %d", x, o, off)
			}
			off += o.Len
		}
		testkit.Equal(t, "end", off, x.Off+x.Len)
	}
	for _, c := range []struct {
		x    IO
		want error
	}{
		{IO{Size: 1, Depth: 1}, syscall.EINVAL}, {IO{Len: 1, Depth: 1}, syscall.EINVAL},
		{IO{Len: 1, Size: 1}, syscall.EINVAL}, {IO{Len: 1<<20 + 1, Size: 512, Depth: 1}, syscall.EFAULT},
		{IO{Len: 2, Size: 1, Depth: 1, Mem: 1<<20 - 1}, syscall.EFAULT},
		{IO{Len: 1, Size: 1, Depth: 1, Mem: ^uint64(0)}, syscall.EFAULT},
	} {
		_, _, err := c.x.operations(1 << 20)
		testkit.ErrorIs(t, err, c.want)
	}
	big := IO{Len: maxOperations + 1, Size: 1, Depth: 1}
	_, _, err := big.operations(1 << 40)
	testkit.ErrorIs(t, err, syscall.EINVAL)
}

func TestTimesOfOperations(t *testing.T) {
	var r IOResult
	var took []time.Duration
	for i := range 100 {
		r.add(block.Done{Op: block.Op{Len: 10}, Took: time.Duration(100-i) * time.Microsecond}, &took)
	}
	for range 9 {
		r.add(block.Done{Op: block.Op{Len: 10}, Err: syscall.EIO}, &took)
	}
	r.percentiles(took)
	if r.Operations != 109 || r.Bytes != 1000 || r.Failed != 9 || len(r.Errors) != maxErrors || r.P50 != 51 ||
		r.P99 != 100 || r.Max != 100 {
		t.Errorf("%+v", r)
	}
}

func TestStorageAndSourceThatAreNotThere(t *testing.T) {
	w := newWorld(t, options{})
	ra, _ := w.a.remote(t, "storage")
	ctx := t.Context()
	testkit.Must(ra.Setup(ctx, SetupArgs{Addrs: []netip.Prefix{netip.PrefixFrom(w.a.v4, 24)}}))(t)
	testkit.ErrorSays(t, testkit.Err(DoIO(ctx, ra, IO{Len: 1, Size: 1, Depth: 1})), "no storage is open")
	testkit.ErrorSays(t, testkit.Err(Load(ctx, ra, LoadArgs{Len: 1})), "no source is open")
	s := Storage{Protocol: "iscsi", Data: Area{dataOff, 1 << 20}, Pool: Area{0, 1 << 20}, Queue: 1, Depth: 1}
	for range 2 {
		testkit.ErrorSays(t, testkit.Err(OpenStorage(ctx, ra, s)), `"iscsi"`)
	}
	s.Protocol, s.Pool.Off = NBD, 1
	testkit.ErrorSays(t, testkit.Err(OpenStorage(ctx, ra, s)), "pool [0x1,")
	src := Source{URL: "https://localhost/", Data: Area{dataOff, 1 << 20}, Pool: Area{0, 1 << 20}, Queue: 1}
	for range 2 {
		testkit.ErrorSays(t, testkit.Err(OpenSource(ctx, ra, src)), "https")
	}
	testkit.OK(t, CloseStorage(ctx, ra))
	testkit.OK(t, CloseSource(ctx, ra))
}

// OpenSource waits for a running CloseSource: the source's areas and queue are in use until it returns.
func TestSourceIsClosedBeforeTheNextIsOpened(t *testing.T) {
	n, closed := new(Node), false
	n.source = new(source)
	n.source.undo.Add(func() error {
		closed = true
		if n.opening.TryLock() {
			n.opening.Unlock()
			return errors.New("OpenSource does not wait for CloseSource")
		}
		return nil
	})
	testkit.OK(t, n.CloseSource(t.Context()))
	testkit.Equal(t, "closed", closed, true)
	testkit.OK(t, n.CloseSource(t.Context()))
}

func TestListOfTensorsFitsAMessage(t *testing.T) {
	var many, long []loader.Tensor
	for range 100_000 {
		many = append(many, loader.Tensor{Name: "\x01", DType: "F8_E4M3", Shape: make([]uint64, 8)})
	}
	for range 100 {
		long = append(long, loader.Tensor{Name: strings.Repeat("\x01", 10_000)})
	}
	for _, list := range [][]loader.Tensor{many, long} {
		part := listed(list)
		if b := testkit.Must(json.Marshal(part))(t); len(part) == 0 || len(part) == len(list) || len(b) > 1<<20-10_000 {
			t.Errorf("%d of %d tensors, %d bytes", len(part), len(list), len(b))
		}
	}
	testkit.Equal(t, "of few", len(listed(many[:3])), 3)
}
