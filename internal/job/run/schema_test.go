package run

import (
	"encoding/json"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/schematest"
	"vnic.dev/vnic/internal/testkit"
)

func validReport(t *testing.T, rep *Report) {
	t.Helper()
	testkit.OK(t, schematest.Compile(t, Schema)(asJSON(t, rep)))
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	return string(testkit.Must(json.Marshal(v))(t))
}

// sample returns the report of a run of both modes in QEMU, with an audit.
func sample() *Report {
	cpu, ratio := 4.25, 2.0
	r := Run{Mode: "devmem", Bytes: 268435456, Seconds: 1.05, SHA256Match: true, SHA256: strings.Repeat("0a", 32),
		PayloadBytesDevice: 268435456, HeaderBytes: 323680, CopyEngineBytes: 268435456, GuestCPUSeconds: &cpu,
		GuestCPU: &CPU{User: 3, System: 1, IRQ: 0.25}, TX: Where{Device: 268435456}, RX: Where{Device: 268435456},
		Seed: 7, Rounds: 1, Fragments: 67000, Audit: &AuditCount{BytesScanned: 1 << 30},
		Hold: &Hold{Tokens: 16384, Stalls: 1}, LateTokens: &LateTokens{Tokens: 512, NoBuffer: 9}}
	c := r
	c.Mode, c.Seconds, c.PayloadBytesDevice, c.PayloadBytesHost, c.CopyEngineBytes = "copy", 2.1, 0, r.Bytes, 2*r.Bytes
	c.Hold, c.LateTokens = nil, nil
	c.TX, c.RX, c.Fragments = Where{Host: r.Bytes}, Where{Host: r.Bytes}, 0
	c.RetransmittedBytes, c.DroppedPackets = 1448, 1
	c.Audit = &AuditCount{HitsSender: 5, HitsReceiver: 4, BytesFound: 9 << 20, BytesScanned: 1 << 30}
	return &Report{Schema: 1, NIC: NICVirtio, BindQueues: 1, Runs: []Run{r, c}, Ratio: &ratio, QEMU: "11.1.2",
		Kernel: "7.2.12", Accel: "tcg", Guest: "qemu", P2P: true, MTU: 1500, Family: 4, Loss: 0.01, Reorder: 0.02, Seed: 7,
		Untested: []string{"qemu 11.1.3, tested with 11.1.2"}, BootSeconds: 4.6, Digest: DigestPieces}
}

func TestReportIsAsItsSchema(t *testing.T) {
	validReport(t, sample())
	empty := &Report{Schema: 1, NIC: NICGVE, BindQueues: 15, Runs: []Run{}, Accel: "none", Guest: "inproc", Family: 6,
		Digest: DigestSHA256}
	validReport(t, empty)
}

func TestSchemaIsThatOfReport(t *testing.T) {
	schematest.Holds(t, "schema.json", "vnic run --json", &Report{}, "../../..", "internal/job/run",
		"internal/report/pcap")
}

// The schema refuses a report that one change has made wrong.
func TestSchemaSeesWhatIsWrong(t *testing.T) {
	valid := schematest.Compile(t, Schema)
	for name, change := range map[string]func(doc, run map[string]any){
		"schema":    func(doc, _ map[string]any) { doc["schema"] = 2.0 },
		"missing":   func(_, run map[string]any) { delete(run, "tx") },
		"unknown":   func(_, run map[string]any) { run["speed"] = 1.0 },
		"type":      func(_, run map[string]any) { run["sha256_match"] = "yes" },
		"negative":  func(_, run map[string]any) { run["bytes"] = -1.0 },
		"fraction":  func(_, run map[string]any) { run["bytes"] = 1.5 },
		"enum":      func(doc, _ map[string]any) { doc["family"] = 5.0 },
		"nested":    func(_, run map[string]any) { run["tx"].(map[string]any)["device"] = nil },
		"not null":  func(_, run map[string]any) { run["seconds"] = nil },
		"no object": func(doc, _ map[string]any) { doc["runs"] = []any{"devmem"} },
	} {
		var doc map[string]any
		testkit.OK(t, json.Unmarshal([]byte(asJSON(t, sample())), &doc))
		change(doc, doc["runs"].([]any)[0].(map[string]any))
		if valid(asJSON(t, doc)) == nil {
			t.Errorf("%s: passes", name)
		}
	}
}
