package labfile

import (
	"cmp"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/shape"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// flow is a simulated transfer of packets over two routes, in virtual time.
type flow struct {
	tx, rx      *shape.Route
	sent, taken int   // packets
	leaves      int64 // when the sender may take links again
	arrives     int64 // when the receiver may take links again
	under       []int64
}

const superPacket, segment = 64 << 10, 8192

// use is the link usage of a packet with superPacket bytes of payload, which is cut into segments on the wire.
func use() shape.Use {
	const header = 66
	n := uint32(superPacket / segment)
	return shape.Use{Payload: superPacket, Header: header, Buffers: 17, Wire: superPacket + n*(header+wire.EtherOverhead)}
}

// step takes links for the next event: a packet leaves or arrives.
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

// letThrough simulates transfers between the two guests' NICs with the same number, in both directions. For each
// transfer, got is the simulated rate and model the rate of lab.MaxMin, in bytes of payload a second at scale 1, and
// limits the edge that limits it in the model.
func letThrough(t *testing.T, d lab.Description) (got, model []float64, limits []*lab.Edge) {
	l := testkit.Must(lab.Open(d, lab.Options{}))(t)
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
		loads, u := make(map[*lab.Edge]float64), use()
		for _, x := range slices.Concat(tx, rx) {
			s := shape.Share{Payload: x.Payload, Header: x.Header, Buffer: x.Buffer, Packet: x.Packet, Wire: x.Wire}
			loads[x.Edge] += s.Bytes(u) / superPacket
		}
		perByte = append(perByte, loads)
	}
	a, b := l.Machine(0), l.Machine(1)
	for i := range a.Ports {
		add(a.Ports[i], b.Ports[i], a, b, 2*i)
		add(b.Ports[i], a.Ports[i], b, a, 2*i+1)
	}
	model, limits = lab.MaxMin(perByte)
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
	for _, f := range flows {
		got = append(got, float64(f.taken)*superPacket/seconds*clock.Scale())
	}
	return got, model, limits
}

// For each file, the simulated rates are within 3 % of the model's, and the wanted edge limits them in the model.
func TestModelIsWhatLinksLetThrough(t *testing.T) {
	want := map[string]string{"wire": "nic0 ", "nic-link": "nic0 up", "gpu-link": "gpu0 ", "uplink": "sw0 ",
		"memory":  "s0 memory",
		"sockets": " to ", "shared": "left "}
	files := testkit.Must(filepath.Glob("testdata/trees/*.yaml"))(t)
	if len(files) != len(want) {
		t.Fatalf("%v", files)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			got, model, limits := letThrough(t, testkit.Must(Load(file, nil))(t).Description)
			for i := range got {
				if math.Abs(got[i]/model[i]-1) > 0.03 {
					t.Errorf("transfer %d: %.0f bytes a second, and the model says %.0f", i, got[i], model[i])
				}
				if !strings.Contains(limits[i].Name, want[name]) {
					t.Errorf("transfer %d: limited by %s", i, limits[i].Name)
				}
			}
		})
	}
}

// A rail is the NICs with the same number in both guests. With half of one NIC's rate, the transfers of its rail have
// half of their rates, and the other transfers keep theirs.
func TestOneRailAtHalfRate(t *testing.T) {
	const slow = 2
	whole, _, _ := letThrough(t, testkit.Must(Load("a3-high", nil))(t).Description)
	d := testkit.Must(Load("a3-high", nil))(t).Description
	d.Guests[0].NICs[slow].Rate /= 2
	got, model, limits := letThrough(t, d)
	testkit.Equal(t, "transfers", len(got), 8)
	sum, before := 0., 0.
	for i := range got {
		want := 1.
		if i/2 == slow {
			want = 0.5
		}
		if ratio := got[i] / whole[i]; math.Abs(ratio-want) > 0.01 {
			t.Errorf("transfer %d of rail %d has %.3f of what it had, not %.1f", i, i/2, ratio, want)
		}
		if math.Abs(got[i]/model[i]-1) > 0.03 || (i/2 == slow) != strings.HasPrefix(limits[i].Name, "a.nic2 ") {
			t.Errorf("transfer %d: %.0f bytes a second; the model says %.0f, by %s", i, got[i], model[i], limits[i].Name)
		}
		sum, before = sum+got[i], before+whole[i]
	}
	if ratio := sum / before; math.Abs(ratio-7./8) > 0.01 {
		t.Errorf("all have %.3f of what they had, not 7/8", ratio)
	}
}
