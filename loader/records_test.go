package loader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

func TestRecordsComeInOrder(t *testing.T) {
	w := newWorld(t)
	w.conf.RangeSize = 3000
	for _, c := range []struct{ records, size, batch, depth, skip, hold int }{
		{1, 1, 1, 1, 0, 1},
		{1000, 100, 10, 1, 0, 1},
		{1000, 100, 64, 4, 0, 1},
		{1000, 100, 64, 4, 12, 3},
		{333, 4099, 7, 5, 1, 5},
		{10, 1000, 100, 3, 0, 1},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			w.poison()
			file := random(c.skip+c.records*c.size, 40)
			s := serve(t, content(file))
			o := testkit.Must(Open(t.Context(), s.URL, w.conf))(t)
			defer func() { testkit.OK(t, o.Close()) }()
			const off = 4097
			r := testkit.Must(o.Records(t.Context(), RecordsConfig{Buffer: w.dst, Off: off, Skip: uint64(c.skip),
				RecordSize: uint64(c.size), Batch: uint64(c.batch), Depth: c.depth}))(t)
			want, held := file[c.skip:], []Batch(nil)
			release := func() { // checks the bytes just before Release
				b := held[0]
				held = held[1:]
				first := c.skip + int(b.First)*c.size
				if !bytes.Equal(w.mem()[b.Off:b.Off+b.Len], file[first:first+int(b.Len)]) {
					t.Errorf("batch %d has other bytes", b.Index)
				}
				testkit.OK(t, r.Release())
			}
			n := uint64(0)
			for ; ; n++ {
				b, err := r.Next(t.Context())
				if errors.Is(err, io.EOF) {
					break
				}
				testkit.OK(t, err)
				k := min(len(want), c.batch*c.size)
				if b.Index != n || b.First != n*uint64(c.batch) || b.Len != uint64(k) || b.Records != uint64(k/c.size) {
					t.Errorf("batch %+v, %d bytes are left", b, len(want))
				}
				want = want[k:]
				if held = append(held, b); len(held) == c.hold {
					release()
				}
			}
			for len(held) > 0 {
				release()
			}
			testkit.Equal(t, "bytes that did not come", len(want), 0)
			w.only(off, c.batch*c.size*c.depth)
			testkit.ErrorIs(t, r.Release(), syscall.EINVAL)
			st := r.Stats()
			if st.Batches != n || st.Records != uint64(c.records) || st.Bytes != uint64(c.records*c.size) ||
				st.First > st.Waited || st.Share() < 0 || st.Share() > 1 {
				t.Errorf("%+v", st)
			}
			testkit.OK(t, r.Close())
			testkit.OK(t, r.Close())
		})
	}
}

// A worker of Fetch must report a complete batch before it waits for the next one, which may need the place that the
// consumer frees only after it has got batches.
func TestBatchesAreToldOfBeforeAConnectionWaits(t *testing.T) {
	w := newWorldOf(t, 64<<10)
	w.conf.Connections = 2
	const records = 5000
	o := w.open(serve(t, content(random(records*8, 45))).URL)
	r := testkit.Must(o.Records(t.Context(), RecordsConfig{Buffer: w.dst, RecordSize: 8, Batch: 1, Depth: 8}))(t)
	for i := range records {
		testkit.Must(r.Next(t.Context()))(t)
		if i%4 < 3 {
			continue
		}
		for range 4 { // several slots at once, so that connections compete
			testkit.OK(t, r.Release())
		}
	}
	testkit.OK(t, r.Close())
}

func TestRecordsAreFetchedAhead(t *testing.T) {
	w := newWorld(t)
	w.conf.Connections = 1
	file := random(100_000, 41)
	var asked atomic.Int64
	content := content(file)
	o := w.open(serve(t, func(rw http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		content(rw, r)
	}).URL)
	r := testkit.Must(o.Records(t.Context(), RecordsConfig{Buffer: w.dst, RecordSize: 1000, Batch: 10, Depth: 3}))(t)
	testkit.Eventually(t, "three batches are there", func() bool { return o.Stats().Payload == 30_000 })
	for range 3 {
		testkit.Must(r.Next(t.Context()))(t)
	}
	_, err := r.Next(t.Context())
	testkit.ErrorIs(t, err, syscall.ENOBUFS)
	testkit.Equal(t, "requests while three batches are held", asked.Load(), 1+3)
	_, err = w.fetch(o, Piece{Len: 1})
	testkit.ErrorIs(t, err, syscall.EBUSY)
	testkit.OK(t, r.Release())
	b := testkit.Must(r.Next(t.Context()))(t)
	testkit.Equal(t, "place", b.Off, 0)
	testkit.OK(t, r.Close()) // during the fetch
	_, err = r.Next(t.Context())
	testkit.ErrorIs(t, err, syscall.ENOBUFS)
	testkit.OK(t, r.Release())
	if _, err = r.Next(t.Context()); err == nil {
		t.Error("there is a batch behind Close")
	}
	w.whole(o, file, 0)
}

func TestShareOfTimeThatTheConsumerWaits(t *testing.T) {
	w := newWorld(t)
	o := w.open(serve(t, content(random(3000, 42))).URL)
	r := testkit.Must(o.Records(t.Context(), RecordsConfig{Buffer: w.dst, RecordSize: 1000, Batch: 1, Depth: 1}))(t)
	now := time.Unix(0, 0)
	step := time.Second // the clock advances by step with each reading
	r.now = func() time.Time {
		now = now.Add(step)
		return now
	}
	for range 3 {
		testkit.Must(r.Next(t.Context()))(t) // waits for one second
		now = now.Add(2 * time.Second)       // and is busy for three
		testkit.OK(t, r.Release())
	}
	_, err := r.Next(t.Context())
	testkit.ErrorIs(t, err, io.EOF)
	st := r.Stats()
	testkit.Equal(t, "stats", st, RecordsStats{Batches: 3, Records: 3, Bytes: 3000, First: time.Second,
		Waited: 4 * time.Second, Busy: 9 * time.Second})
	testkit.Equal(t, "share", st.Share(), 4.0/13)
	testkit.Equal(t, "share of nothing", (&RecordsStats{}).Share(), 0)
	testkit.OK(t, r.Close())
}

func TestRecordsThatDoNotCome(t *testing.T) {
	w := newWorld(t)
	file := random(10_000, 43)
	var state atomic.Int64 // of the server; 0: it serves; 1: it does not answer; 2: it answers 410
	h := content(file)
	o := w.open(serve(t, func(rw http.ResponseWriter, r *http.Request) {
		switch state.Load() {
		case 0:
			h(rw, r)
		case 1:
			<-r.Context().Done()
		case 2:
			http.Error(rw, "gone", http.StatusGone)
		}
	}).URL)
	state.Store(1)
	conf := RecordsConfig{Buffer: w.dst, RecordSize: 1000, Batch: 2, Depth: 2}
	r := testkit.Must(o.Records(t.Context(), conf))(t)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	_, err := r.Next(ctx)
	testkit.ErrorIs(t, err, why)
	testkit.OK(t, r.Close())

	state.Store(2)
	r = testkit.Must(o.Records(t.Context(), conf))(t)
	_, err = r.Next(t.Context())
	testkit.ErrorSays(t, err, "410 Gone")
	testkit.ErrorSays(t, r.Close(), "410 Gone")

	state.Store(0)
	ctx, cancel = context.WithCancelCause(t.Context())
	r = testkit.Must(o.Records(ctx, conf))(t)
	testkit.Must(r.Next(t.Context()))(t)
	cancel(why)
	testkit.ErrorIs(t, r.Close(), why)
	w.whole(o, file, 0)
}

func TestRecordsThatAreRefused(t *testing.T) {
	w := newWorld(t)
	o := w.open(serve(t, content(random(10_000, 44))).URL)
	for _, c := range []struct {
		set  func(*RecordsConfig)
		want error
	}{
		{func(c *RecordsConfig) { c.Buffer = nil }, syscall.EINVAL},
		{func(c *RecordsConfig) { c.RecordSize = 0 }, syscall.EINVAL},
		{func(c *RecordsConfig) { c.RecordSize = 999 }, syscall.EINVAL},
		{func(c *RecordsConfig) { c.Batch = 0 }, syscall.EINVAL},
		{func(c *RecordsConfig) { c.Batch = 1 << 62 }, syscall.EINVAL},
		{func(c *RecordsConfig) { c.Depth = 0 }, syscall.EINVAL},
		{func(c *RecordsConfig) { c.Depth = maxDepth + 1 }, syscall.EINVAL},
		{func(c *RecordsConfig) { c.Skip = 10_000 }, syscall.EINVAL},
		{func(c *RecordsConfig) { c.Skip = 1 }, syscall.EINVAL},
		{func(c *RecordsConfig) { c.Off = dstSize - 3999 }, syscall.ENOSPC},
		{func(c *RecordsConfig) { c.Off = ^uint64(0) }, syscall.ENOSPC},
		{func(c *RecordsConfig) { c.Batch, c.Depth = 1<<52, maxDepth }, syscall.ENOSPC},
	} {
		conf := RecordsConfig{Buffer: w.dst, RecordSize: 1000, Batch: 2, Depth: 2}
		c.set(&conf)
		_, err := o.Records(t.Context(), conf)
		testkit.ErrorIs(t, err, c.want, "%+v", conf)
	}
}
