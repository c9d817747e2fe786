package run

import (
	"strings"
	"testing"

	"vnic.dev/vnic/internal/nic/sabotage"
	"vnic.dev/vnic/internal/testkit"
)

// With guests in this process, a run with a fault that concerns the proof fails, and others pass, as docs/sabotage.md
// says of virtio. Some faults are tried in the large form only.
//
// Invariant: vnic run: The proof fails if the NIC is made to break what is being proved.
func TestProofSeesSabotage(t *testing.T) {
	testkit.Slow(t)
	const wrongByte, inHost = "of the destination is not what the seed says", "in host memory"
	says := map[string]string{"payload-place": wrongByte, "segmentation": wrongByte, "rule": inHost, "stats": inHost,
		"end": "", "checksum-in": wrongByte}
	for _, f := range sabotage.Faults() {
		want, known := says[f.Name]
		fails := f.RunVirtio == sabotage.Fails
		if f.RunVirtio == sabotage.Missing || fails && !known && !testkit.Long() {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			o := options(4 << 20)
			o.Sabotage, o.StallSecs = f.Name, 5
			if !fails {
				do(t, o)
				if !known {
					return
				}
				o.Corrupt = 0.01 // checksum-in: only corrupted frames show that a NIC does not verify checksums
			}
			testkit.OK(t, o.Check())
			if rep, err := Do(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, and not %q: %+v", err, want, rep)
			}
		})
	}
}

func TestSabotageThatIsNot(t *testing.T) {
	for _, x := range []struct{ nic, name, want string }{
		{NICVirtio, "nonsense", "--sabotage nonsense: no such fault: payload-place, header-place"},
		{NICVirtio, "cut/0", "--sabotage cut/0: /N is a number from 1"},
		{NICVirtio, "generation", "--sabotage generation: NICs of gve alone can have it: --nic gve"},
		{NICVirtio + "," + NICGVE, "generation", ""},
		{NICGVE, "cut/97", ""},
	} {
		o := Defaults()
		o.NIC, o.Sabotage = x.nic, x.name
		if err := o.Check(); (err == nil) != (x.want == "") || err != nil && !strings.HasPrefix(err.Error(), x.want) {
			t.Errorf("%s, %s: %v", x.nic, x.name, err)
		}
	}
}
