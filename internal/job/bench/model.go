package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/dustin/go-humanize/english"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/memavail"
	"vnic.dev/vnic/internal/undo"
)

// modelRuns is how many runs each case has; the cases run in turn.
const modelRuns = 5

const memoryEdge = "memory"

// calibration has the rates from which predict predicts: sums over the workers, in GB/s.
type calibration struct {
	workers          int     // processors that Go uses
	copyOne, copyAll float64 // copies of memory: by one worker, and by one worker for each processor
	flowOne, flowAll float64 // payload through NICs: of one flow, and of one flow for each processor
}

// predict returns the rate of a flow, the sum of the rates of the hogs beside it (workers that copy memory), and the
// names of the edges that limit the flow and each hog; without hogs hogBound is "". lab.MaxMin divides copyAll among
// flow and hogs. The flow gets at most flowOne, and with at least as many threads (hogs+1) as processors at most
// flowAll/threads. A hog gets at most copyOne, with more threads than processors at most copyOne*processors/threads.
func (c *calibration) predict(hogs int) (flow, hog float64, flowBound, hogBound string) {
	threads := hogs + 1
	memory := &lab.Edge{Name: memoryEdge, Rate: c.copyAll}
	loads := []map[*lab.Edge]float64{{memory: 1, {Name: "one flow", Rate: c.flowOne}: 1}}
	if threads >= c.workers {
		loads[0][&lab.Edge{Name: "processors", Rate: c.flowAll}] = float64(threads)
	}
	one := &lab.Edge{Name: "one worker", Rate: c.copyOne}
	if threads > c.workers {
		one = &lab.Edge{Name: "processors", Rate: c.copyOne * float64(c.workers) / float64(threads)}
	}
	for range hogs {
		edge := *one
		loads = append(loads, map[*lab.Edge]float64{memory: 1, &edge: 1})
	}
	rates, limits := lab.MaxMin(loads)
	for _, r := range rates[1:] {
		hog += r
	}
	if hogs > 0 {
		hogBound = limits[1].Name
	}
	return rates[0], hog, limits[0].Name, hogBound
}

type worker struct {
	run  runFunc
	flow *coldFlow // nil: the worker copies memory
}

// did is the result of workers in one run: the sums of their rates, in GB/s, and of the processors that they had.
type did struct{ rate, processors float64 }

// together runs workers at the same time, each on its own thread, until all have ended. It returns the sums of the
// flows and of the workers that copy.
func together(ctx context.Context, d time.Duration, workers []worker) (flows, copies did, err error) {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		ready sync.WaitGroup
		begin = make(chan struct{})
	)
	ready.Add(len(workers))
	for _, w := range workers {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Done()
			<-begin
			before := uint64(0)
			if w.flow != nil {
				before = w.flow.received()
			}
			start, cpu := time.Now(), threadTime()
			done, e := w.run(ctx, d)
			spent := time.Since(start)
			cpu = threadTime() - cpu
			if e == nil && done.bytes == 0 {
				e = fmt.Errorf("a run moved nothing in %v", spent)
			}
			if e == nil && w.flow != nil {
				r := rig{counted: w.flow.received}
				e = errors.Join(r.compare(before, done.bytes), w.flow.arrived())
			}
			mu.Lock()
			defer mu.Unlock()
			sum := &copies
			if w.flow != nil {
				sum = &flows
			}
			sum.rate += float64(done.bytes) / float64(spent.Nanoseconds())
			sum.processors += float64(cpu) / float64(spent)
			err = errors.Join(err, e)
		})
	}
	ready.Wait()
	close(begin)
	wg.Wait()
	return flows, copies, errors.Join(err, ctx.Err())
}

type testbed struct {
	mem   *memory
	flows []*coldFlow
	undo  undo.Stack
}

// leastPart is the least size of a worker's or a flow's source or destination memory, in bytes.
const leastPart = 4 << 20

// fill makes memory for copies, at least size bytes, half of it source and half destination, and n flows, which it
// warms. The first flow has as much source and as much destination of its own, each other flow about an n-th of that,
// but at least leastPart.
func (b *testbed) fill(ctx context.Context, n, size int, log *slog.Logger) (err error) {
	half := max(size/2, n*leastPart)
	if b.mem, err = newMemory(half, half); err != nil {
		return err
	}
	b.undo.Add(b.mem.close)
	for i := range n {
		through := half
		if i > 0 {
			through = max(half/n, leastPart) &^ (pieceLen - 1)
		}
		f, err := newColdFlow(through, log)
		if err != nil {
			return err
		}
		b.undo.Add(f.close)
		b.flows = append(b.flows, f)
		if err := f.warm(ctx); err != nil {
			return err
		}
	}
	return nil
}

// copiers returns n workers that copy, each within its own n-th of b.mem.
func (b *testbed) copiers(n int) (all []worker) {
	part := len(b.mem.src) / n &^ (pieceLen - 1)
	for i := range n {
		m := memory{src: b.mem.src[i*part:][:part], dst: b.mem.dst[i*part:][:part]}
		all = append(all, worker{run: m.copier(pieceLen)})
	}
	return all
}

func (b *testbed) nics(n int) (all []worker) {
	for _, f := range b.flows[:n] {
		all = append(all, worker{run: f.run, flow: f})
	}
	return all
}

// modelMemory returns how many bytes of memory Model copies through: twice the last-level caches and at least
// 2*coldLen, but at most a sixth of the available memory, because flows need up to twice as much besides; and in any
// case at least 2*leastPart. The result is rounded down to a multiple of 2*pieceLen; fill may take more memory.
func modelMemory(caches, available uint64) uint64 {
	return max(min(max(2*caches, 2*coldLen), available/6), 2*leastPart) &^ (2*pieceLen - 1)
}

// Model measures what a flow through NICs gets while workers copy memory, and predicts it from flows alone
// and copies alone. Of o it uses Time, Log and Progress, and cold, which tests set.
func Model(ctx context.Context, o Options) (rep *ModelReport, err error) {
	n := runtime.GOMAXPROCS(0)
	rep = &ModelReport{Schema: 1, CPUs: runtime.NumCPU(), Workers: n, Arch: runtime.GOOS + "/" + runtime.GOARCH,
		Go: runtime.Version(), Runs: modelRuns, RunSeconds: o.Time.Seconds(), CacheBytes: cacheBytes("/")}
	if rep.MemoryBytes = uint64(o.cold); o.cold == 0 {
		available, _ := memavail.Available("/")
		rep.MemoryBytes = modelMemory(rep.CacheBytes, available)
	}
	if rep.MemoryBytes > math.MaxInt/2 {
		return nil, fmt.Errorf("caches of %d bytes are more than can be mapped", rep.CacheBytes)
	}
	hogs := max(1, n-1)
	rep.Hogs = hogs
	b := new(testbed)
	defer func() { err = errors.Join(err, b.undo.All()) }()
	if err := b.fill(ctx, n, int(rep.MemoryBytes), o.Log); err != nil {
		return nil, err
	}
	cases := []modelCase{{name: "copy-1", workers: b.copiers(1)}, {name: "copy-all", workers: b.copiers(n)},
		{name: "nic-1", workers: b.nics(1)}, {name: "nic-all", workers: b.nics(n)},
		{name: "nic-beside-hogs", workers: append(b.nics(1), b.copiers(hogs)...)}}
	if n == 1 { // with one processor the cases "-1" and "-all" are the same
		cases = slices.Delete(slices.Delete(cases, 3, 4), 1, 2)
	}
	for i := range modelRuns {
		if o.Progress != nil {
			o.Progress("model", i, modelRuns)
		}
		for k := range cases {
			c := &cases[k]
			runtime.GC()
			flows, copies, err := together(ctx, o.Time, c.workers)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			c.flows, c.copies = append(c.flows, flows), append(c.copies, copies)
		}
	}
	rep.fill(cases)
	return rep, nil
}

type modelCase struct {
	name          string
	workers       []worker
	flows, copies []did
}

// fill adds a row for each case but the last, and two for the last one: the flow's and the hogs', whose rates it
// predicts from the other cases.
func (rep *ModelReport) fill(cases []modelCase) {
	c := calibration{workers: rep.Workers}
	for _, x := range cases[:len(cases)-1] {
		if n := len(x.workers); x.flows[0].rate > 0 {
			c.flowAll = rep.add(x.name, "through NICs, "+english.Plural(n, "flow", ""), n, x.flows).Measured.Median
			c.flowOne = cmp.Or(c.flowOne, c.flowAll)
		} else {
			c.copyAll = rep.add(x.name, "copies, "+english.Plural(n, "worker", ""), n, x.copies).Measured.Median
			c.copyOne = cmp.Or(c.copyOne, c.copyAll)
		}
	}
	mixed, hogs := &cases[len(cases)-1], rep.Hogs
	flow, hog, flowBound, hogBound := c.predict(hogs)
	rep.add(mixed.name, "1 flow beside "+english.Plural(hogs, "hog", ""), 1, mixed.flows).holdAgainst(flow, flowBound)
	rep.add("hogs-beside-nic", english.Plural(hogs, "hog", "")+" beside it", hogs, mixed.copies).holdAgainst(hog, hogBound)
}

func (rep *ModelReport) add(name, about string, workers int, runs []did) *ModelRow {
	var rates, processors []float64
	for _, r := range runs {
		rates, processors = append(rates, r.rate), append(processors, r.processors)
	}
	r := ModelRow{Name: name, About: about, Unit: GBps, Workers: workers, Measured: spanOf(rates),
		Processors: spanOf(processors).Median}
	r.NsPerKiB = float64(workers) * 1024 / r.Measured.Median
	rep.Rows = append(rep.Rows, r)
	return &rep.Rows[len(rep.Rows)-1]
}

func (r *ModelRow) holdAgainst(rate float64, bound string) {
	r.Prediction = &Prediction{Rate: rate, Bound: bound, ErrorPercent: 100 * (rate/r.Measured.Median - 1)}
}

// spanOf returns the median, the least and the largest of an odd number of values.
func spanOf(values []float64) Span {
	v := slices.Sorted(slices.Values(values))
	return Span{Median: v[len(v)/2], Low: v[0], High: v[len(v)-1]}
}
