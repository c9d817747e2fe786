package selftest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/job/selftest/ktap"
	"vnic.dev/vnic/internal/job/selftest/results"
	"vnic.dev/vnic/internal/job/selftest/splat"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/assets/selftests"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const kernelList = `net/lib:csum
drivers/net:ping.py
drivers/net:psp.py
drivers/net/hw:csum.py
drivers/net/hw:devmem.py
drivers/net/hw:ethtool.sh
drivers/net/hw:ping.py
net:tls
`

func TestProgramsAreChosen(t *testing.T) {
	all := listed(kernelList)
	if want := []string{"hw/csum.py", "hw/devmem.py", "hw/ethtool.sh", "hw/ping.py", "ping.py", "psp.py"}; !slices.Equal(all,
		want) {
		t.Fatalf("got %v", all)
	}
	for _, c := range []struct {
		args string
		want string // names, with cases in brackets; or "!" and an error
	}{
		{"", "hw/csum.py hw/devmem.py hw/ping.py ping.py"},
		{"hw/csum.py ping.py", "hw/csum.py ping.py"},
		{"csum", "hw/csum.py"},
		{"./hw/csum.py drivers/net/hw/devmem", "hw/csum.py hw/devmem.py"},
		{"csum.py:a csum:b*", "hw/csum.py[a b*]"},
		{"csum.py:a csum", "hw/csum.py"},
		{"csum csum:a", "hw/csum.py"},
		{"hw/ethtool.sh", "hw/ethtool.sh"},
		{"hw/ping.py", "hw/ping.py"},
		{"nosuch", "!nosuch: this kernel's tests have no such program: vnic selftest --list names them"},
		{"csum:", "!csum:: which case? vnic selftest --list csum names them"},
	} {
		list, err := choose(all, strings.Fields(c.args))
		var got []string
		for _, p := range list {
			s := p.name
			if p.only != nil {
				s += "[" + strings.Join(p.only, " ") + "]"
			}
			got = append(got, s)
		}
		text := strings.Join(got, " ")
		if err != nil {
			text = "!" + err.Error()
		}
		testkit.Equal(t, c.args, text, c.want)
	}
}

func TestTwoProgramsOfOneNameAreNamed(t *testing.T) {
	_, err := find([]string{"hw/csum.py", "hw/csum.sh"}, "csum")
	if err == nil || err.Error() != "csum: which? hw/csum.py or hw/csum.sh" {
		t.Errorf("got %v", err)
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	good := Options{NIC: "gve",
		NICOptions: lab.NICOptions{MTU: 1500, MaxMTU: 9000}, Queues: 4, Timeout: time.Minute, Repeat: 1}
	testkit.OK(t, good.Check())
	for want, change := range map[string]func(o *Options){
		"--nic e1000: virtio or gve":                         func(o *Options) { o.NIC = "e1000" },
		"--iommu is for --nic gve: ":                         func(o *Options) { o.NIC, o.IOMMU = lab.Virtio, true },
		"--iommu is for --nic gve":                           func(o *Options) { o.Device, o.IOMMU = "e1000e", true },
		"--device rtl8139: e1000e, virtio-net-pci, vmxnet3":  func(o *Options) { o.Device = "rtl8139" },
		"--mtu 10000: 576 to 9198":                           func(o *Options) { o.MTU = 10000 },
		"--max-mtu 1499: 1500 (--mtu) to 9198":               func(o *Options) { o.MaxMTU = 1499 },
		"--queues 17: 1 to 16":                               func(o *Options) { o.Queues = 17 },
		"--queues 0: 1 to 16":                                func(o *Options) { o.Queues = 0 },
		"--queues and --device: ":                            func(o *Options) { o.Device, o.Queues = "e1000e", 2 },
		"--timeout 0s: more than 0":                          func(o *Options) { o.Timeout = 0 },
		"--repeat -1: 1 or more":                             func(o *Options) { o.Repeat = -1 },
		"--tests and --source: one of them: --source builds": func(o *Options) { o.Tests, o.Source = "a", "b" },
	} {
		o := good
		change(&o)
		if err := o.Check(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

// since sets Proved if the NIC counted payload in device memory, or if no case passed.
func TestPayloadProves(t *testing.T) {
	passed := &results.Program{Cases: []results.Case{{Name: "check_rx", Result: ktap.Pass}}}
	failed := &results.Program{Cases: []results.Case{{Name: "check_rx", Result: ktap.Fail}}}
	before := payload{device: 100, host: 50}
	for _, c := range []struct {
		name   string
		now    payload
		p      *results.Program
		proved bool
	}{
		{"it was there", payload{device: 200, host: 50}, passed, true},
		{"it was not", payload{device: 100, host: 5000}, passed, false},
		{"nothing passed", payload{device: 100, host: 50}, failed, true},
	} {
		d := c.now.since(before, c.p)
		if d.Proved != c.proved || (d.Why == "") != (c.now.device > 100) {
			t.Errorf("%s: %+v", c.name, d)
		}
	}
}

// A program does not run with its patches if one of them does not apply.
func TestPatchesThatDoNotApplyAreNamed(t *testing.T) {
	patches := (&program{name: "hw/ntuple.py"}).patches()
	if len(patches) != 2 {
		t.Fatalf("ntuple.py is changed by %v", patches)
	}
	b := &bench{opt: &Options{Patched: true}, images: &selftests.Images{Left: []string{"9999-other.patch", patches[1]}}}
	p := &program{name: "hw/ntuple.py", only: []string{"queue*"}}
	testkit.Equal(t, "columns", len(b.columns(p)), 2)
	res := testkit.Must(b.program(t.Context(), p, results.Patched))(t)
	testkit.Equal(t, "left", strings.Join(res.Left, " "), patches[1])
	testkit.Equal(t, "line", Line(res), "hw/ntuple.py             not run (patched): does not apply: "+patches[1])
	if b.withoutPatches(p, results.Unmodified) != nil {
		t.Error("unmodified, it wants patches")
	}
	b.images.Left = b.images.Left[:1]
	if b.withoutPatches(p, results.Patched) != nil {
		t.Error("a patch of another program keeps it from being run")
	}
}

func TestLineOfAProgram(t *testing.T) {
	p := results.Program{Name: "hw/csum.py", Column: results.Patched, Seconds: 12.4,
		Cases:  []results.Case{{Result: ktap.Pass}, {Result: ktap.Fail}, {Result: ktap.XFail}, {Result: ktap.Timeout}},
		Splats: []results.Splat{{Splat: splat.Splat{Kind: splat.Warning, Title: "WARNING: net/core/dev.c:1"}}}}
	testkit.Equal(t, "line", Line(&p), "hw/csum.py                 1 pass, 2 fail, 0 skip, 1 xfail (patched), 12 s; the kernel: "+
		"warning: WARNING: net/core/dev.c:1")
}

// The console reports a complaint to the function that was set (to) when the complaint's first line came.
func TestConsoleTellsOfComplaints(t *testing.T) {
	var next strings.Builder
	c := newConsole(&next)
	var first, second []splat.Splat
	say := func(s string) { testkit.Must(c.Write([]byte(s)))(t) }
	say("[    1.000000] WARNING: CPU: 0 PID: 1 at net/core/dev.c:1 f+0x1/0x2\n")
	c.to(func(s splat.Splat) { first = append(first, s) })
	say("[    2.000000] BUG: kernel NULL pointer dereference, address: 00000000000000a0\n")
	c.to(func(s splat.Splat) { second = append(second, s) })
	say("[    3.000000] Kernel panic - not syncing: Fatal exception\n")
	c.to(nil)
	if len(first) != 1 || first[0].Kind != splat.Oops || !first[0].Fatal() || len(second) != 1 || second[0].Kind != splat.Panic {
		t.Errorf("first %+v, second %+v", first, second)
	}
	testkit.Equal(t, "lines handed on", strings.Count(next.String(), "\n"), 3)
	if (&splat.Splat{Kind: splat.Warning}).Fatal() {
		t.Error("a warning is fatal")
	}
}
