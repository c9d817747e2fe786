package labfile

import (
	"cmp"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/lab"
	"vnic.dev/vnic/shape"
)

// flow is a transfer, in a world where time passes by events alone: packets leave over one route and arrive over
// another.
type flow struct {
	tx, rx      *shape.Route
	sent, taken int   // packets
	leaves      int64 // the sender may take links for another packet
	arrives     int64 // likewise the receiver
	under       []int64
}

const superPacket, segment = 64 << 10, 8192

// use is that of a packet in segments.
func use() shape.Use {
	const header = 66
	n := uint32(superPacket / segment)
	return shape.Use{Payload: superPacket, Header: header, Buffers: 17, Wire: superPacket + n*(header+24)}
}

// step takes links for the packet that can be next, of at most 8 under way.
func (f *flow) step() {
	if f.sends() <= f.receives() {
		now := f.leaves
		f.leaves = max(now, f.tx.Take(now, use()))
		f.under = append(f.under, f.leaves)
		f.sent++
		return
	}
	now := f.receives()
	f.arrives = max(now, f.rx.Take(now, use()))
	f.under = f.under[1:]
	f.taken++
}

func (f *flow) sends() int64 {
	if len(f.under) == 8 {
		return math.MaxInt64
	}
	return f.leaves
}

func (f *flow) receives() int64 {
	if len(f.under) == 0 {
		return math.MaxInt64
	}
	return max(f.arrives, f.under[0])
}

// Whatever is the bottleneck of a tree, what links let through is what the model predicts, within 3 %.
func TestModelIsWhatLinksLetThrough(t *testing.T) {
	want := map[string]string{"wire": "nic0 ", "nic-link": "nic0 up", "gpu-link": "gpu0 ", "uplink": "sw0 ",
		"memory":  "s0 memory",
		"sockets": " to ", "shared": "left "}
	files := testkit.Must(filepath.Glob("testdata/trees/*.yaml"))(t)
	if len(files) != len(want) {
		t.Fatalf("%v", files)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			l := testkit.Must(lab.Open(testkit.Must(Load(file, nil))(t).Description, lab.Options{}))(t)
			defer func() { testkit.OK(t, l.Close()) }()
			clock, edges := shape.NewClock(100), make(map[*lab.Edge]*shape.Edge)
			route := func(loads []lab.Load) *shape.Route {
				var shares []shape.Share
				for _, x := range loads {
					if x.Rate > 0 && edges[x.Edge] == nil {
						edges[x.Edge] = shape.NewEdge(x.Name, x.Rate)
					}
					if x.Rate > 0 {
						shares = append(shares, shape.Share{Edge: edges[x.Edge], Payload: x.Payload, Header: x.Header,
							Buffer: x.Buffer, Packet: x.Packet, Wire: x.Wire})
					}
				}
				return shape.NewRoute(clock, shares)
			}
			var flows []*flow
			var perByte []map[*lab.Edge]float64
			add := func(from, to *lab.Port, m, n *lab.Machine, gpu int) {
				way := func(p *lab.Port, m *lab.Machine) lab.Way {
					gpu := min(gpu, len(m.GPUs)-1)
					return lab.Way{GPU: gpu, Bounced: !m.Tree.Path(p.Place, m.GPUs[gpu].Place).P2P()}
				}
				tx, rx := from.Loads(way(from, m), true), to.Loads(way(to, n), false)
				flows = append(flows, &flow{tx: route(tx), rx: route(rx)})
				of, u := make(map[*lab.Edge]float64), use()
				for _, x := range slices.Concat(tx, rx) {
					s := shape.Share{Payload: x.Payload, Header: x.Header, Buffer: x.Buffer, Packet: x.Packet, Wire: x.Wire}
					of[x.Edge] += s.Bytes(u) / superPacket
				}
				perByte = append(perByte, of)
			}
			a, b := l.Machine(0), l.Machine(1)
			for i := range a.Ports {
				add(a.Ports[i], b.Ports[i], a, b, 2*i)
				add(b.Ports[i], a.Ports[i], b, a, 2*i+1)
			}
			rates, limits := lab.MaxMin(perByte)
			const seconds = 20
			for {
				f := slices.MinFunc(flows, func(f, g *flow) int {
					return cmp.Compare(min(f.sends(), f.receives()), min(g.sends(), g.receives()))
				})
				if min(f.sends(), f.receives()) > seconds*1e9 {
					break
				}
				f.step()
			}
			for i, f := range flows {
				got := float64(f.taken) * superPacket / seconds * clock.Scale()
				if math.Abs(got/rates[i]-1) > 0.03 {
					t.Errorf("transfer %d: %.0f bytes a second, and the model says %.0f", i, got, rates[i])
				}
				if name := limits[i].Name; !strings.Contains(name, want[filepath.Base(strings.TrimSuffix(file, ".yaml"))]) {
					t.Errorf("transfer %d: limited by %s", i, name)
				}
			}
		})
	}
}
