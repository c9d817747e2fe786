package badinput

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// mutant is a vnic without one of its bounds.
type mutant struct {
	name  string
	row   string // regular expression for the row that fails without the bound
	edits []edit
}

type edit struct{ file, old, new string }

// limits.Patience has no mutant: frames to a slow receiver are dropped long before Patience is over.
var mutants = []mutant{
	{"regions of any size", "a region that is no whole page",
		[]edit{{"vhostuser/memory.go", "(r.GPA|r.Size|r.Offset)%pageSize != 0", "false"}}},
	{"chains of any length", "chains that are longer than any may be", []edit{
		{"virtq/virtq.go", "MaxDescriptors = 1024", "MaxDescriptors = 32768"},
		{"virtq/virtq.go", "MaxSegments = 4 * MaxDescriptors", "MaxSegments = 1 << 30"}}},
	{"control frames pass", "a control frame$", []edit{
		{"internal/wire/link.go", "h.EtherType == EtherTypeControl || p.Header[12]", "p.Src == p.Dst && p.Header[12]"},
		{"internal/wire/link.go", "p.Dst == ControlMAC || p.Src == ControlMAC {", "false {"}}},
	{"nobody is slow", "10 buffers a second",
		[]edit{{"internal/nic/fairness.go", "2*most.taken >= offered", "offered >= 0"}}},
	{"all is said", "a connection$",
		[]edit{{"internal/job/serve/quiet.go", "const quietBurst = 100", "const quietBurst = 1 << 30"}}},
	{"all refusals of a connection are said", "a region that is no whole page",
		[]edit{{"internal/peer/refusals.go", "const MaxRefusalLogs = 16", "const MaxRefusalLogs = 1 << 30"}}},
	{"all that a queue meets is said", "a bad chain, and the ring set up again",
		[]edit{{"internal/nic/loglimit.go", "if now.Before(l.next) {", "if false {"}}},
	{"all that a driver does wrong is said", "the longest admin queue",
		[]edit{{"internal/nic/loglimit.go", "if now.Before(l.next) {", "if false {"}}},
	{"anybody is whoever they say", "an innocent guest's address as source",
		[]edit{{"internal/wire/link.go", "before = p; !l.who.passes(p)", "before = p; false"}}},
	{"any number of flows", "datagrams of two thousand flows",
		[]edit{{"internal/wire/gateway/gateway.go", "newQuota(maxUDP,", "newQuota(1<<20,"}}},
	{"any number of questions", "questions, to others and of no sense", []edit{
		{"internal/wire/gateway/dns.go", "newQuota(maxQuestions,", "newQuota(1<<20,"},
		{"internal/wire/gateway/datagrams.go", "maxWaiting  = 256 ", "maxWaiting  = 1 << 20 "}}},
	{"a ring's old descriptor stays open", "a ring set up again with new descriptors",
		[]edit{{"vhostuser/rings.go", "scm.Close(r.call)\n\tr.call = fd", "r.call = fd"}}},
	{"all connections wait", "connections that say nothing",
		[]edit{{"internal/job/serve/source.go", "const maxWaiting = 8", "const maxWaiting = 1 << 20"}}},
	{"any number of mappings", "as many mappings as there may be",
		[]edit{{"dma/space.go", "const MaxRegions = 65535", "const MaxRegions = 1 << 20"}}},
}

// A vnic that is built without one of its bounds fails a row.
func TestEachBoundIsNeeded(t *testing.T) {
	if !testkit.Long() {
		t.Skip("in the large form only (VNIC_LONG)")
	}
	root := testkit.Must(filepath.Abs("../../.."))(t)
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			dir := t.TempDir()
			replace := map[string]string{}
			for _, e := range m.edits {
				path := filepath.Join(root, e.file)
				now := path
				if changed := replace[path]; changed != "" {
					now = changed
				}
				source := string(testkit.Must(os.ReadFile(now))(t))
				if n := strings.Count(source, e.old); n != 1 {
					t.Fatalf("%q stands %d times in %s", e.old, n, e.file)
				}
				replace[path] = filepath.Join(dir, filepath.Base(e.file))
				testkit.OK(t, os.WriteFile(replace[path], []byte(strings.Replace(source, e.old, e.new, 1)), 0o600))
			}
			overlay := testkit.Must(json.Marshal(map[string]any{"Replace": replace}))(t)
			testkit.OK(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
			build := exec.CommandContext(t.Context(), "go", "build", "-overlay", filepath.Join(dir, "overlay.json"),
				"-o", filepath.Join(dir, "vnic"), "vnic.dev/vnic/cmd/vnic")
			build.Dir = root
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			var row string
			for _, r := range table {
				if ok, _ := regexp.MatchString(m.row, r.name); ok {
					row = r.name
				}
			}
			run := exec.CommandContext(t.Context(), os.Args[0], "-test.timeout", "5m", "-test.run",
				"^TestBadInputs$/^.*$/^.*$/^.*$/^"+strings.ReplaceAll(regexp.QuoteMeta(row), " ", "_")+"$")
			run.Env = append(os.Environ(), programEnv+"="+filepath.Join(dir, "vnic"))
			out, err := run.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestBadInputs/") {
				t.Errorf("row %q is not red: %v\n%s", row, err, out)
			}
		})
	}
}
