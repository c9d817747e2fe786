package labfile

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/testkit"
)

// Each preset is valid and has two guests, and the second guest's first NIC has the listed paths to its GPUs.
func TestPresets(t *testing.T) {
	testkit.Equal(t, "presets", strings.Join(Presets(), " "), "a3-high acs flat pair")
	for _, name := range Presets() {
		l := testkit.Must(Load(name, nil))(t)
		if all := l.Memory(true); all > 4<<30 || all <= l.Memory(false) || len(l.Guests) != 2 {
			t.Errorf("%s: %d guests, %d bytes", name, len(l.Guests), all)
		}
	}
	kinds := func(name string) (s string) {
		l := testkit.Must(Load(name, nil))(t)
		tree, nics, gpus := l.Tree(1)
		for _, g := range gpus {
			p := tree.Path(nics[0], g)
			s += fmt.Sprint(p.Kind, " ", p.Distance, " ")
		}
		return strings.TrimSpace(s)
	}
	testkit.Equal(t, "pair", kinds("pair"), "bus PIX")
	testkit.Equal(t, "flat", kinds("flat"), "none PHB none PHB")
	testkit.Equal(t, "acs", kinds("acs"), "bus PIX none PIX")
	testkit.Equal(t, "a3-high", kinds("a3-high"),
		"bus PIX bus PIX host bridge PHB host bridge PHB none SYS none SYS none SYS none SYS")
}

// What Lab.YAML writes gives the same lab when it is read, and the same text when it is written again.
func TestCompletedFileIsTheSameLab(t *testing.T) {
	for _, name := range append(Presets(), "testdata/all.yaml") {
		l := testkit.Must(Load(name, nil))(t)
		b := testkit.Must(l.YAML())(t)
		again, err := Parse(name, b)
		if err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
		if d := diff(l.Complete(), again.Complete()); d != "" || !cmp.Equal(l.Machines, again.Machines) ||
			l.Gateway != again.Gateway || l.Accel != again.Accel || !cmp.Equal(l.Seed, again.Seed) ||
			!cmp.Equal(l.Uplinks, again.Uplinks, cmp.Comparer(sameAddr)) {
			t.Errorf("%s:\n%s", name, d)
		}
		if twice := testkit.Must(again.YAML())(t); !bytes.Equal(b, twice) {
			t.Errorf("%s\nthen\n%s", b, twice)
		}
	}
}

func sameAddr(a, b netip.AddrPort) bool { return a == b }

// diff compares descriptions; nil GPUs of a NIC stand for all GPUs of its guest.
func diff(a, b lab.Description) string {
	for _, d := range []*lab.Description{&a, &b} {
		for i := range d.Guests {
			for j := range d.Guests[i].NICs {
				n := &d.Guests[i].NICs[j]
				var all []int
				for k := range d.Guests[i].GPUs {
					if n.Reaches(k) {
						all = append(all, k)
					}
				}
				n.GPUs = all
			}
		}
	}
	return cmp.Diff(strings.ReplaceAll(fmt.Sprintf("%+v", a), "{", "\n{"),
		strings.ReplaceAll(fmt.Sprintf("%+v", b), "{", "\n{"))
}

// If old is replaced by new in all.yaml, Parse returns an error with the text want, or, if want is "", no error.
func TestMistakes(t *testing.T) {
	text := string(testkit.Must(os.ReadFile("testdata/all.yaml"))(t))
	for _, c := range []struct{ old, new, want string }{
		{text, "", "it is empty"},
		{text, "guests: [", "1:9: "},
		{text, "guests: {a: 5}", "1:13: this is not a mapping"},
		{text, "guests: {}", "no guests"},
		{text, "guests: {a: {}}", "a has 0 NICs: 1 to 64"},
		{text, "guests: {A: {nics: [{name: n}]}}", `"A" is no name of a guest`},
		{text, "guests: {a: {nics: [{name: n, model: e1000}]}}", "1:38: model e1000: virtio or gve"},
		{text, "guests: {a: {nics: [{name: n, mtu: fast}]}}", "1:36: this is not a whole number"},
		{text, "guests: {a: {nics: [{name: n, below: s0}]}}", "below, link and acs-redirect are of a guest with sockets"},
		{text, "guests: {a: {switches: [{name: s}], nics: [{name: n}]}}", "switches without sockets"},
		{text, "guests: {a: {nics: {name: n}}}", "this is not a list (as nics: [{name: nic0}]"},
		{text, "guests:\n  - name: a", "2:3: this is not a mapping (as guests: {a: ...}: names without a dash before them)"},
		{text, "guests:\n\ta: {}", "2:1: a tab: YAML is indented with spaces"},
		{text, "guests: {a: &x {nics: [{name: n}], b: *x}}", "or is part of itself"},
		{text, "guests:\n  a:\n    nics: [{name: x}]\n    gpus: !!x\n", "4:11: a tag, !!x: a lab file has none"},
		{text, "guests: {a: &x !!map {nics: [{name: n}]}, b: *x}", "1:16: a tag, !!map: a lab file has none"},
		{text, "guests: {a: &a {nics: [{name: n}]}, <<: [{z: *a}, {y: *a}]}", "<< merges one mapping"},
		{text, "guests: {&k a: {nics: [{name: n}]}}", "a key of a lab file is a word"},
		{text, "guests: {a: {nics: [{name: rc0}]}}", "rc0 is the root complex"},
		{text, "guests: {a: {x: 1, nics: [{name: n}]}}", "there is no \"x\" here"},
		{text, "a: &a [" + strings.Repeat("1,\n", 999) + "]\nb: &b [" + strings.Repeat("*a,\n", 999) + "]\nguests: *b",
			"more than 100000 parts"},
		{text, strings.Repeat("#\n", MaxSize/2+1), "65538 bytes: a lab file has 65536 at most"},
		{text, "\n" + strings.Repeat("#", MaxLine+1), "file.yaml:2:1024: a line of 1025 bytes"},
		{text, strings.Repeat("[", 33), "1:33: nested more than 32 deep"},
		{text, strings.Repeat("- ", 33), "1:65: nested more than 32 deep"},
		{text, "guests:\n" + strings.Repeat("- 1\n", 10_000), "10001:1: more than 20000 words and signs"},
		{text, "guests:\n" + strings.Repeat("- 1\n", 40), "2:1: this is not a mapping"},
		{"guests:", "---\nguests:", ""},
		{"p2p: ", "p2pp: ", `there is no "p2pp" here: p2p is meant?`},
		{"p2p: \"on\"", "p2p: maybe", `p2p is "maybe": on or off`},
		{"gateway: isolated", "gateway: out", `gateway is "out": nat, isolated or off`},
		{"gateway: isolated", "gatewy: off", "gateway is meant?"},
		{"memory: 256M", "memory: 256X", "5:13: 256X is not a number of bytes, as 4096, 64K, 256M or 4G"},
		{"memory: 256M", "memory: 100M", "memory 100M: 192M to 4T"},
		{"cpus: 2", "cpus: 65", "cpus 65: 1 to 64"},
		{"cpus: 2", "cpus: yes", "this is not a whole number"},
		{"cpus: 2", "cpu: 2", "cpus is meant?"},
		{"cpus: 2", "driver: vnicgpu", ""},
		{"cpus: 2", "driver: node", ""},
		{"cpus: 2", "driver: nvidia", "4:13: driver nvidia: node or vnicgpu"},
		{"cpus: 2", "driver: ''", ""},
		{"cpus: 2", "driver: [vnicgpu]", "4:13: this is not a word"},
		{"cpus: 2", "drivr: vnicgpu", "driver is meant?"},
		{"  b:\n", "  b:\n    driver: vnicgpu\n", "25:30: memory 96M: not a power of two"},
		{"memory: 96M", "memory: 1M", "memory 1M: not a multiple of 2M"},
		{"scale: 1000", "scale: 0", "scale is 0: 1 to 1000000"},
		{"scale: 1000", "scale: fast", "scale is fast: 1 to 1000000"},
		{"rate: 200Gbit", "rate: 0", "0 is no rate here: not a rate, as 100Gbit or 300GB/s"},
		{"rate: 200Gbit", "rate: 1000000000000000000", "no rate here: not a rate"},
		{"rate: 200Gbit", "rate: 1000000000Tbit", "1kbit to 8000Tbit"},
		{"dram: 300GB/s", "dram: 1e-3kbit", "is no rate here: 1kbit to 8000Tbit"},
		{"{s0-s1: 60.5GB/s}", "{s0-s2: 60GB/s}", "s0-s2 is not between two sockets of the guest"},
		{"{s0-s1: 60.5GB/s}", "{s0-s1: 60GB/s, s1-s0: 60GB/s}", "the link between s1 and s0 is there twice"},
		{"gemodel: 0.1%/20%/90%", "gemodel: 0.1%", "gemodel is 0.1%: how likely a good link turns bad"},
		{"drop: [7, 100]", "drop: [x]", "this is not a whole number from 0"},
		{"drop: [7, 100]", "drop: [" + strings.Repeat("1,\n", 2) + "-1]", "this is not a whole number from 0"},
		{"delay: 10us", "delay: 10", "delay is 10: a time, as 10us, 5ms or 2s"},
		{"delay: 10us", "delay: 2h", "1h at most"},
		{"rate: 25Gbit, limit", "limit", "limit: of a queue, which a link with a rate has"},
		{"limit: 256K", "limit: 2G", "limit is 2G: 1 to 1G"},
		{"at: 1s", "at: soon", "at is \"soon\": a time, as 10us, 5ms or 2s"},
		{"at: 1s", "at: 25h", "24h at most"},
		{"link a.nic0 loss=0 delay=1ms", "link a.nic9 loss=0", "\"a.nic9\" is no NIC"},
		{"link a.nic0 loss=0 delay=1ms", "link a.nic0 los=0", "a link has no \"los\": it has state, loss, gemodel"},
		{"link a.nic0 loss=0 delay=1ms", "link a.nic0 loss", "loss: a word, = and a value, as loss=1%"},
		{"link a.nic0 loss=0 delay=1ms", "link a.nic0", "not a change, as link a.nic0 loss=1%"},
		{"link a.nic0 loss=0 delay=1ms", "gpu a.gpu0 p2p=off", `a gpu has no "p2p": it has remove`},
		{"link a.nic0 loss=0 delay=1ms", "pci a.gpu0 remove", "pci: a link, a nic or a gpu"},
		{"link a.nic0 loss=0 delay=1ms", "gpu a.gpu9 remove", `"a.gpu9" is no GPU: guest and GPU, as a.gpu0`},
		{"link a.nic0 loss=0 delay=1ms", "link a.nic0 remove", "remove: a word, = and a value"},
		{"link a.nic0 loss=0 delay=1ms", "nic a.nic0 remove p2p=off", "remove: it has no value, and nothing else is set"},
		{"link a.nic0 loss=0 delay=1ms", "gpu a.gpu0 remove=now", "remove=now: it has no value"},
		{"hotplug: true", "hotplug: 1", "this is not true or false"},
		{"hotplug: true", "hotplog: true", "hotplug is meant?"},
		{"hotplug: true", "hotplug: true, model: gve", "14:95: hotplug: not with model gve: QEMU aborts at device_del of " +
			"vfio-user: leave it out, and take the link down instead (link a.nic0 state=down)"},
		{"model: gve}", "model: gve, xdp: true}", "21:39: xdp with model gve: leave it out: in the guest gve's driver"},
		{"xdp: true", "xdp: 1", "this is not true or false"},
		{"model: gve}", "model: gve, hotplug: true}", "21:43: hotplug: not with model gve"},
		{"model: gve}", "model: gve, hotplug: false}", ""},
		{"model: gve}", "model: gve, timestamps: true}", ""},
		{"hotplug: true", "hotplug: true, timestamps: true", "14:113: timestamps: of model gve"},
		{"gpus: []}", "gpus: [], hotplug: true}", "22:56: hotplug: it is on the root complex"},
		{"memory: 96M", "memory: 96M, hotplug: true", "24:44: hotplug: its memory is a NUMA node's"},
		{text, "guests: {a: {nics: [{name: n}], gpus: [{name: p, hotplug: true}]}}",
			"1:59: hotplug: it is on the root complex"},
		{"nic a.nic1 p2p=off", "nic a.nic1 p2p=no", "p2p is no: on or off"},
		{"p2p: same-bridge", "p2p: same", "none, same-bridge or any"},
		{"{name: s1,", "{name: s0,", "there are two s0"},
		{"{name: sw0, below: s0", "{name: sw0, below: sw1", "sw0 is below itself"},
		{"{name: sw0, below: s0", "{name: sw0, below: sw0", "sw0 is below itself"},
		{"{name: sw0, below: s0", "{name: sw0", "it does not say what it is below: one of s0, s1, sw0, sw1"},
		{"{name: sw0, below: s0", "{name: sw0, below: [s0, s1]", "this is not a word"},
		{"{name: nic0, below: sw0", "{name: nic0, below: gpu0",
			"no socket or switch of the guest, which has s0, s1, sw0, sw1"},
		{"link: gen4x16, acs", "link: gen9x16, acs", "from gen1x1 to gen6x16"},
		{"acs-redirect: true", "acs-redirect: 1", "this is not true or false"},
		{"mtu: 9000", "mtu: 90000", "mtu 90000: 576 to 65521 with model virtio"},
		{"max-mtu: 9500", "max-mtu: 1499", "max-mtu 1499: 1500 (mtu) to 65521 with model virtio"},
		{"max-mtu: 9500", "max-mtu: 65522", "max-mtu 65522: 1500 (mtu) to"},
		{"model: gve}", "model: gve, max-mtu: 9199}", "to 9198 with model gve"},
		{"model: gve}", "model: gve, max-mtu: 1499}", "max-mtu 1499: "},
		{"model: gve}", "model: gve, max-mtu: 9198}", ""},
		{"queues: 4", "queues: 17", "queues 17: 1 to 16 pairs"},
		{"queues: 4", "queues: 4, rsc-usecs: 2000000", "rsc-usecs 2000000: microseconds, 0 to 1000000"},
		{"mac: 02:00:00:00:00:07", "mac: 03:00:00:00:00:07", "mac is one address of a NIC"},
		{"mac: 02:00:00:00:00:07", "mac: 02:76:6e:69:00:01", "a.nic1 has the mac 02:76:6e:69:00:01, as another NIC has"},
		{"ipv4: 10.0.0.7/16", "ipv4: 10.0.0.7", "with the length of its prefix, as 10.0.0.1/24"},
		{"ipv4: 10.0.0.7/16", "ipv4: 10.118.110.1/24", "a.nic1 has the ipv4 10.118.110.1, as another NIC has"},
		{"ipv6: fd00::7/64", "ipv6: 10.0.0.1/8", "as fd00::1/64"},
		{"ipv4: 10.0.0.7/16", "ipv4: 10.118.111.7/24", "10.118.111.7/24: vnic gives the addresses of this subnet itself, " +
			"10.118.111.1/24 to this NIC"},
		{"ipv4: 10.0.0.7/16", "ipv4: 10.118.110.254/16", "vnic gives the addresses of this subnet itself"},
		{"ipv6: fd00::7/64", "ipv6: fd76:6e69::fe/64", "vnic gives the addresses of this subnet itself"},
		{"ipv4: 10.0.0.7/16", "ipv4: 10.0.0.7/0", "a prefix of length 0"},
		{"ipv4: 10.0.0.7/16", "ipv4: 10.0.0.0/16", "the subnet's own address"},
		{"ipv4: 10.0.0.7/16", "ipv4: 10.0.255.255/16", "the subnet's broadcast address"},
		{"ipv6: fd00::7/64", "ipv6: fd00::/64", "the subnet's own address"},
		{"ipv4: 10.0.0.7/16", "ipv4: 10.0.0.7/8", "a.nic0 has 10.118.110.1/24, and a.nic1 10.0.0.7/8: each NIC of a guest has"},
		{text, "guests: {a: {nics: [{name: n, ipv4: 10.0.0.7/8}, {name: m}]}}",
			"1:37: a.n has 10.0.0.7/8, and a.m 10.118.111.1/24: each NIC of a guest has a subnet of its own"},
		{"gpus: [gpu1]", "gpus: [gpu7]", "gpu7 is no GPU of the guest"},
		{"gpus: [gpu1]", "gpus: [gpu1, gpu1]", "gpu1 is there twice"},
		{text, "guests: {a: {nics: [{name: n, gpus: []}], gpus: [{name: p}]}}", "1:51: a.p: no NIC of the guest may"},
		{text, "guests: {a: {nics: [{name: n}, {name: m, model: gve}], gpus: [{name: p}]}}", "a.p: NICs of both models"},
		{"memory: 128M", "memory: 100M", "memory 100M: not a power of two"},
		{"memory: 96M", "memory: 8T", "memory of 8T: at most 4T"},
		{"memory: 96M", "memory: big", "big is not a number of bytes, as 4096, 64K, 256M or 4G"},
		{"memory: 96M", "memory: 97M", "memory 97M: not a multiple of 2M"},
		{"of: a.nic0", "of: nic0", `"nic0" is no NIC: guest and NIC, as a.nic0`},
		{"of: b.nic0", "of: a.nic0", "the link of a.nic0 is there twice"},
		{"loss: 1%", "loss: 100%", "loss is 100%: not a part"},
		{"name: up1,", "name: up0,", "36:12: there are two up0"},
		{"name: up1,", "name: Up,", `"Up" is no name of an uplink`},
		{"name: up1,", "name: gateway,", `"gateway" is no name of an uplink`},
		{"of: b, stream", "of: a, stream", "there are two up4"},
		{"of: b, stream", "stream", "there are two up4"},
		{"of: b, stream", "of: c, stream", `"c" is no guest: the uplink is of the host that runs it, as of: a`},
		{", tap: tap0", "", "an uplink is one of vxlan, tap and stream"},
		{"tap: tap0", "tap: tap0, stream: {listen: ./x}", "an uplink is one of vxlan, tap and stream"},
		{"tap: tap0", "tap: a-name-that-is-16", "is no name of a device: 1 to 15 bytes"},
		{"tap: tap0", "tapp: tap0", "tap is meant?"},
		{"192.0.2.1:4789", "192.0.2.1", "local is an address and a port, as 192.0.2.1:4789"},
		{"192.0.2.2:4789", "[2001:db8::2]:4789", "local and remote are both of IPv4, or both of IPv6"},
		{"192.0.2.2:4789", "239.1.1.1:4789", "remote is 239.1.1.1, a group's address"},
		{"vni: 42", "vni: 16777216", "VNI 16777216: 0 to 16777215"},
		{"vni: 42", "vni: 0x100000000000000a", "VNI 16777216: 0 to 16777215"},
		{"vni: 42", "vni: x", "this is not a whole number"},
		{"listen: /tmp/x.sock", "listen: /tmp/x.sock, connect: ./y", "a stream has listen or connect, and not both"},
		{"192.0.2.2:4788", "192.0.2.2",
			`connect is "192.0.2.2": a file's name with a slash in it, as ./up.sock, or HOST:PORT`},
		{text, "guests: {a: {nics: [{name: n}]}}\nuplinks: [" + strings.Repeat("{name: u, tap: t},\n", 17) + "]",
			"17 uplinks: a lab has 16 at most"},
		{"seed: 7", "seed: -7", "this is not a whole number"},
		{"{name: gpu1, below", "{name: gpu0, below", "there are two gpu0"},
	} {
		if !strings.Contains(text, c.old) {
			t.Errorf("the file has no %q", c.old)
		}
		_, err := Parse("file.yaml", []byte(strings.Replace(text, c.old, c.new, 1)))
		if c.want == "" {
			testkit.OK(t, err)
			continue
		}
		bad := (*Error)(nil)
		first, _, _ := strings.Cut(fmt.Sprint(err), "\n")
		if !errors.As(err, &bad) || !strings.Contains(first, c.want) || !strings.HasPrefix(first, "file.yaml:") {
			t.Errorf("%s instead of %s: %v, want %s", c.new, c.old, err, c.want)
		}
	}
}

// In all.yaml, Hotplug is set for devices with hotplug: true and for the device that the script removes, and for no
// others.
func TestHotplug(t *testing.T) {
	l := testkit.Must(Load("testdata/all.yaml", nil))(t)
	a, b := l.Guests[0], l.Guests[1]
	testkit.Equal(t, "hotplug", fmt.Sprint(a.NICs[0].Hotplug, a.NICs[1].Hotplug, a.GPUs[0].Hotplug, a.GPUs[1].Hotplug,
		b.NICs[0].Hotplug, b.NICs[1].Hotplug, b.GPUs[0].Hotplug), "true false true true false false false")
	testkit.Equal(t, "times in the completed file", strings.Count(string(testkit.Must(l.YAML())(t)), "hotplug: true\n"), 3)
}

// Invariant: labfile: A guest's driver is read and stays in the completed file; with vnicgpu its
// GPUs are PCI devices.
func TestDriver(t *testing.T) {
	const text = "guests:\n  a: {driver: vnicgpu, sockets: [{name: s}], nics: [{name: n, model: gve, below: s}, " +
		"{name: m, below: s}], gpus: [{name: p, memory: 1M, hotplug: true, below: s}]}\n" +
		"  b: {driver: node, nics: [{name: n, model: gve}], gpus: [{name: p}]}\n  c: {nics: [{name: n}]}\n"
	l := testkit.Must(Parse("f", []byte(text)))(t)
	var drivers []string
	for _, g := range l.Guests {
		drivers = append(drivers, g.Driver)
	}
	testkit.Equal(t, "drivers", fmt.Sprintf("%q", drivers), `["vnicgpu" "node" ""]`)
	b := string(testkit.Must(l.YAML())(t))
	testkit.Equal(t, "drivers in the completed file", strings.Count(b, "driver: "), 2)
	again := testkit.Must(Parse("f", []byte(b)))(t)
	testkit.Equal(t, "read again", diff(l.Complete(), again.Complete()), "")
	bad := (*Error)(nil)
	_, err := Parse("f", []byte(strings.Replace(text, "vnicgpu", "node", 1)))
	if !errors.As(err, &bad) {
		t.Errorf("without the driver: %v", err)
	}
	testkit.ErrorSays(t, err, "a.p: NICs of both models")
}

// Invariant: labfile: A guest's IOMMU is read, stays in the completed file, and is refused for
// guests with a virtio NIC, or with GPUs of the driver vnicgpu.
func TestIOMMU(t *testing.T) {
	const text = "guests:\n  a: {iommu: true, nics: [{name: n, model: gve}], gpus: [{name: p}]}\n" +
		"  b: {nics: [{name: n}]}\n"
	l := testkit.Must(Parse("f", []byte(text)))(t)
	testkit.Equal(t, "IOMMUs", fmt.Sprint(l.Guests[0].IOMMU, l.Guests[1].IOMMU), "true false")
	b := testkit.Must(l.YAML())(t)
	testkit.Equal(t, "in the completed file", strings.Count(string(b), "iommu: true\n"), 1)
	testkit.Equal(t, "read again", diff(l.Complete(), testkit.Must(Parse("f", b))(t).Complete()), "")
	_, err := Parse("f", []byte(strings.Replace(text, "model: gve", "model: virtio", 1)))
	testkit.ErrorSays(t, err, "f:2:", "iommu: for guests whose NICs are all of model gve")
	_, err = Parse("f", []byte(strings.Replace(text, "iommu: true", "iommu: true, driver: vnicgpu", 1)))
	testkit.ErrorSays(t, err, "would wait for ever")
}

func TestTooMany(t *testing.T) {
	var b strings.Builder
	b.WriteString("guests:\n")
	for i := range 65 {
		fmt.Fprintf(&b, "  g%d: {nics: [{name: n}], gpus: [{name: p, memory: 4K}]}\n", i)
	}
	_, err := Parse("f", []byte(b.String()))
	testkit.ErrorSays(t, err, "f:2:3: 65 GPUs: a lab has 64 at most")
	b.Reset()
	b.WriteString("guests:\n")
	for i := range 251 {
		fmt.Fprintf(&b, "  g%d: {nics: [{name: n}]}\n", i)
	}
	_, err = Parse("f", []byte(b.String()))
	testkit.ErrorSays(t, err, "251 NICs up to here: a lab has 250")
}

func TestTooManySocketsAndPorts(t *testing.T) {
	list := func(n int, item string) string {
		var all []string
		for i := range n {
			all = append(all, strings.ReplaceAll(item, "%", fmt.Sprint(i)))
		}
		return "[" + strings.Join(all, ",\n") + "]"
	}
	_, err := Parse("f", []byte("guests: {a: {sockets: "+list(9, "{name: s%}")+", nics: [{name: n, below: s0}]}}"))
	testkit.ErrorSays(t, err, "f:9:2: s8: more than 8 sockets")
	tree := func(n int) string {
		return "sockets: [{name: s}], nics: [{name: n, below: s}], gpus: " + list(n, "{name: g%, below: s}")
	}
	_, err = Parse("f", []byte("guests: {a: {"+tree(17)+"}}"))
	testkit.ErrorSays(t, err, "it may address 17: 16 at most")
	_, err = Parse("f", []byte("guests: {a: {sockets: [{name: s}], nics: "+list(32, "{name: n%, below: s}")+"}}"))
	testkit.OK(t, err)
	_, err = Parse("f", []byte("guests: {a: {sockets: [{name: s}], nics: "+list(33, "{name: n%, below: s}")+"}}"))
	testkit.ErrorSays(t, err, "f:33:2: n32: more than 32 below s")
	_, err = Parse("f", []byte("guests: {a: {nics: "+list(25, "{name: n%}")+"}}"))
	testkit.ErrorSays(t, err, "25 NICs and GPUs without a PCIe tree: 24 at most")
	switches := make([]string, 0, 121)
	for i := range 121 {
		above := "s"
		if i >= 20 {
			above = fmt.Sprint("x", i/20)
		}
		switches = append(switches, fmt.Sprintf("{name: x%d, below: %s}", i, above))
	}
	_, err = Parse("f", []byte("guests: {a: {sockets: [{name: s}], nics: [{name: n, below: x0}], switches: ["+
		strings.Join(switches, ",\n")+"]}}"))
	testkit.ErrorSays(t, err, "bus numbers", "240 at most")
}

func TestLoad(t *testing.T) {
	for name, want := range map[string]string{
		"nosuch": "presets are a3-high, acs, flat, pair", "pear": "the preset pair is meant?",
		"./pair": "no such lab file"} {
		testkit.ErrorSays(t, testkit.Err(Load(name, nil)), want)
	}
	testkit.ErrorSays(t, testkit.Err(Load(t.TempDir(), nil)), "is a directory")
	file := filepath.Join(t.TempDir(), "pair")
	testkit.OK(t, os.WriteFile(file, []byte("guests: {x: {nics: [{name: n}]}}"), 0o644))
	testkit.Equal(t, "guest", testkit.Must(Load(file, nil))(t).Guests[0].Name, "x")
	l := testkit.Must(Load("-", strings.NewReader("guests: {y: {nics: [{name: n}]}}")))(t)
	testkit.Equal(t, "guest", l.Guests[0].Name, "y")
	testkit.ErrorSays(t, testkit.Err(Load("-", strings.NewReader("gests: {}"))),
		"-:1:1: there is no \"gests\" here: guests is meant?")
}

// NICs of two guests with the same number are in one subnet, NICs of one guest are not.
func TestRailsAreSubnets(t *testing.T) {
	l := testkit.Must(Load("a3-high", nil))(t)
	for i, n := range l.Guests[0].NICs {
		peer := l.Guests[1].NICs[i]
		if n.Addr4.Masked() != peer.Addr4.Masked() || n.Addr6.Masked() != peer.Addr6.Masked() || n.Addr4 == peer.Addr4 {
			t.Errorf("%v, %v", n, peer)
		}
		for _, other := range l.Guests[0].NICs[:i] {
			if n.Addr4.Overlaps(other.Addr4) || n.Addr6.Overlaps(other.Addr6) {
				t.Errorf("%s and %s are in one subnet", n.Name, other.Name)
			}
		}
	}
}

func TestAddressesThatAreGiven(t *testing.T) {
	l := testkit.Must(Parse("f", []byte("guests: {a: {nics: [{name: n, ipv4: 10.118.110.1/24, ipv6: fd00::1/64},"+
		"{name: m, ipv4: 192.0.2.2/31}]}}")))(t)
	for i, want := range []string{"invalid Prefix fd00::1/64", "192.0.2.2/31 invalid Prefix"} {
		v4, v6 := l.Given(0, i)
		testkit.Equal(t, "given", fmt.Sprint(v4, " ", v6), want)
	}
}

// Parse returns an *Error, or a lab that can be written and read again.
func FuzzParse(f *testing.F) {
	for _, name := range Presets() {
		f.Add(testkit.Must(read(name, nil))(f))
	}
	f.Add(testkit.Must(os.ReadFile("testdata/all.yaml"))(f))
	f.Add([]byte("guests: {a: &x {nics: [{name: n}], b: *x}}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := Parse("f", b)
		if err != nil {
			if bad := (*Error)(nil); !errors.As(err, &bad) {
				t.Errorf("%T: %v", err, err)
			}
			return
		}
		text := testkit.Must(l.YAML())(t)
		again, err := Parse("f", text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if d := diff(l.Complete(), again.Complete()); d != "" {
			t.Errorf("%s", d)
		}
		for i := range l.Guests {
			tree, nics, gpus := l.Tree(i)
			for _, n := range nics {
				for _, g := range gpus {
					if p := tree.Path(n, g); p.Reason == "" || p.Kind == pcie.Bus && p.Distance > pcie.PXB {
						t.Errorf("%s to %s: %+v", n, g, p)
					}
				}
			}
		}
	})
}

// UplinksOf returns a guest's uplinks, and uplinks that name no guest.
func TestUplinksOfHosts(t *testing.T) {
	l := testkit.Must(Load("testdata/all.yaml", nil))(t)
	for guest, want := range map[string]string{"": "", "a": "stream=listen:./up.sock", "b": "stream=connect:./up.sock"} {
		list := l.UplinksOf(guest)
		got := ""
		if len(list) > 4 {
			got = list[4].String()
		}
		if got != want || len(list) < 4 || list[1].Tap != "tap0" {
			t.Errorf("%q: %+v", guest, list)
		}
	}
}
