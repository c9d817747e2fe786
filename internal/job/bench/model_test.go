package bench

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

func TestPredictionOfAFlowBesideHogs(t *testing.T) {
	for _, c := range []struct {
		calibration
		hogs      int
		flow, hog float64
		bounds    [2]string
	}{
		{calibration{2, 10, 12, 8, 14}, 1, 6, 6, [2]string{"memory", "memory"}},
		{calibration{2, 10, 12, 4, 8}, 1, 4, 8, [2]string{"one flow", "memory"}},
		{calibration{2, 10, 18, 6, 11}, 1, 5.5, 10, [2]string{"processors", "one worker"}},
		{calibration{4, 10, 20, 9, 30}, 3, 5, 15, [2]string{"memory", "memory"}},
		{calibration{2, 10, 12, 8, 14}, 0, 8, 0, [2]string{"one flow", ""}},
		// one processor
		{calibration{1, 10, 10, 6, 6}, 1, 3, 5, [2]string{"processors", "processors"}},
	} {
		flow, hog, a, b := c.predict(c.hogs)
		if math.Abs(flow-c.flow) > 1e-9 || math.Abs(hog-c.hog) > 1e-9 || [2]string{a, b} != c.bounds {
			t.Errorf("%+v: %v by %s, hogs %v by %s", c, flow, a, hog, b)
		}
	}
}

// The flow and the hogs are predicted to have at most their rates alone, and together at most the memory's. The flow's
// rate does not grow with more hogs, and does not sink with faster memory.
func TestPredictionsAreInOrder(t *testing.T) {
	rates := []float64{0.5, 3, 7, 12, 40}
	const most = 1 + 1e-9
	for _, workers := range []int{1, 2, 5} {
		for _, one := range rates {
			for _, alone := range rates {
				for _, all := range rates {
					least := make([]float64, 8)
					for _, memory := range rates {
						last := math.Inf(1)
						for hogs := range least {
							c := calibration{workers, one, memory, alone, all}
							flow, hog, _, _ := c.predict(hogs)
							if flow <= 0 || flow > alone*most || flow+hog > memory*most || hog > one*float64(hogs)*most {
								t.Fatalf("%+v: %v beside %d hogs, which get %v", c, flow, hogs, hog)
							}
							if flow > last*most || flow*most < least[hogs] {
								t.Fatalf("%+v: %v beside %d hogs; %v beside fewer, %v with less memory", c, flow, hogs, last,
									least[hogs])
							}
							last, least[hogs] = flow, flow
						}
					}
				}
			}
		}
	}
}

func tinyModel(t *testing.T) *ModelReport {
	t.Helper()
	return testkit.Must(Model(t.Context(), Options{Time: 5 * time.Millisecond, cold: 2 * leastPart}))(t)
}

// How exact a prediction is depends on the machine, so the test does not limit its error. It requires that a flow has
// at most twice as much of a processor beside hogs as alone, and is predicted to have at most its rate alone.
func TestModelReport(t *testing.T) {
	testkit.CheckFDs(t)
	rep := tinyModel(t)
	checkSchema(t, ModelSchema, rep)
	var b strings.Builder
	testkit.OK(t, rep.Table(&b))
	perProcessor := make(map[string]float64)
	for _, r := range rep.Rows {
		m := r.Measured
		if m.Low <= 0 || m.Low > m.Median || m.Median > m.High || r.NsPerKiB <= 0 || r.Processors <= 0 {
			t.Errorf("%+v", r)
		}
		if predicted := strings.Contains(r.Name, "hogs"); predicted != (r.Prediction != nil) {
			t.Errorf("%s: %+v", r.Name, r.Prediction)
		}
		if !strings.Contains(b.String(), r.About+"  GB/s") {
			t.Errorf("no %q in\n%s", r.About, b.String())
		}
		perProcessor[r.Name] = m.Median / r.Processors
	}
	for _, name := range []string{"copy-1", "nic-1", "nic-beside-hogs", "hogs-beside-nic"} {
		if perProcessor[name] == 0 {
			t.Errorf("no row %s", name)
		}
	}
	alone, beside := perProcessor["nic-1"], perProcessor["nic-beside-hogs"]
	if beside > 2*alone {
		t.Errorf("a flow gets %v GB/s of a processor alone, and %v beside hogs", alone, beside)
	}
	last := rep.Rows[len(rep.Rows)-2]
	one := slices.IndexFunc(rep.Rows, func(r ModelRow) bool { return r.Name == "nic-1" })
	if p := last.Prediction.Rate; p > rep.Rows[one].Measured.Median*(1+1e-9) {
		t.Errorf("%v predicted, alone %+v", p, rep.Rows[one])
	}
	for _, want := range []string{"predicted", "bound by", "%", "nothing about PCIe"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	testkit.ErrorIs(t, rep.Table(failing{}), errNoRoom)
}

func TestModelEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := Options{Time: MinTime, cold: 2 * leastPart, Progress: func(string, int, int) { cancel() }}
	testkit.ErrorIs(t, testkit.Err(Model(ctx, o)), context.Canceled)
}

// coldFlow.arrived finds the payload of the newest frame, also when the flow's memory is used again, and returns an
// error if it is not there.
func TestColdFlowsAreChecked(t *testing.T) {
	c := testkit.Must(newColdFlow(leastPart, nil))(t)
	defer c.close()
	seen := make(map[uint64]bool)
	for range 3 * leastPart / coldFrame {
		testkit.OK(t, c.send(1))
		testkit.OK(t, c.rounds(1))
		testkit.Equal(t, "frames", testkit.Must(c.take())(t), 1)
		testkit.OK(t, c.arrived())
		seen[c.guests[1].newest] = true
	}
	if len(seen) < leastPart/coldFrame/2 {
		t.Errorf("frames came to %d places", len(seen))
	}
	clear(c.guests[1].ram[c.guests[1].newest:][:4096])
	testkit.ErrorSays(t, c.arrived(), "is not there")
}

func TestCachesAreSummedUp(t *testing.T) {
	root := t.TempDir()
	cache := func(cpu, index, level, kind, size, shared string) {
		dir := filepath.Join(root, "sys/devices/system/cpu", cpu, "cache", index)
		testkit.OK(t, os.MkdirAll(dir, 0o777))
		for name, text := range map[string]string{"level": level, "type": kind, "size": size, "shared_cpu_list": shared} {
			testkit.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o666))
		}
	}
	testkit.Equal(t, "no caches", cacheBytes(root), 0)
	for _, cpu := range []string{"cpu0", "cpu1", "cpu2"} {
		cache(cpu, "index0", "1", "Data", "32K", cpu[3:])
		cache(cpu, "index1", "1", "Instruction", "32K", cpu[3:])
	}
	testkit.Equal(t, "first level", cacheBytes(root), 3*32<<10)
	cache("cpu0", "index3", "3", "Unified", "16384K", "0-1")
	cache("cpu1", "index3", "3", "Unified", "16384K", "0-1")
	cache("cpu2", "index3", "3", "Unified", "8192K", "2")
	testkit.Equal(t, "two", cacheBytes(root), 24<<20)
	cache("cpu2", "index3", "3", "Unified", "a lot", "2")
	testkit.Equal(t, "one", cacheBytes(root), 16<<20)
}

func TestMemoryOfTheModel(t *testing.T) {
	for _, c := range [][3]uint64{
		{0, 64 << 30, 256 << 20},
		{480 << 20, 64 << 30, 960 << 20},
		{480 << 20, 3 << 30, 512 << 20},
		{480 << 20, 0, 8 << 20},
	} {
		testkit.Equal(t, "memory", modelMemory(c[0], c[1]), c[2])
	}
}

// The table warns of a busy machine, of too little memory, and of a prediction that memory does not bound.
func TestModelTableSaysWhatIsWrong(t *testing.T) {
	rep := &ModelReport{Workers: 2, MemoryBytes: 2 << 20, CacheBytes: 1 << 20,
		Rows: []ModelRow{{About: "x", Unit: GBps, Workers: 2, Processors: 1.99}}}
	says := func(what string) bool {
		var b bytes.Buffer
		testkit.OK(t, rep.Table(&b))
		return strings.Contains(b.String(), what)
	}
	testkit.Equal(t, "busy", says("quiet machine"), false)
	testkit.Equal(t, "short", says("too short"), false)
	testkit.Equal(t, "nothing predicted", says("does not bound"), false)
	rep.Rows[0].Prediction = &Prediction{Bound: memoryEdge}
	testkit.Equal(t, "full", says("does not bound"), false)
	rep.Rows[0].Prediction.Bound = "processors"
	testkit.Equal(t, "not full", says("does not bound"), true)
	rep.Rows[0].Processors, rep.CacheBytes = 1.8, 2<<20
	testkit.Equal(t, "busy", says("quiet machine"), true)
	testkit.Equal(t, "short", says("too short"), true)
}

func TestNetworkWithoutMemory(t *testing.T) {
	s := shape{ports: 2, queues: 1, frame: 64, mtu: jumboMTU, ram: 1 << 60}
	testkit.ErrorSays(t, testkit.Err(newNetwork(s, slog.New(slog.DiscardHandler))), "mapping a memfd")
}
