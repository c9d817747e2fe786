package page

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Invariant: page: The page loads nothing, and its policy allows only the scripts in it.
func TestPolicyAllowsWhatIsInThePageAlone(t *testing.T) {
	text := string(html(nil))
	policy := assemble().policy
	if !strings.HasPrefix(policy, "default-src 'none'; script-src 'sha256-") || strings.Contains(policy, "unsafe") {
		t.Error(policy)
	}
	n := 0
	elements := regexp.MustCompile(`(?s)<(script|style)([^>]*)>(.*?)</(?:script|style)>`)
	for _, m := range elements.FindAllStringSubmatch(text, -1) {
		if strings.Contains(m[2], "application/json") {
			continue
		}
		n++
		sum := sha256.Sum256([]byte(m[3]))
		if hash := "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(policy, hash) {
			t.Errorf("%s %s...: %s is not in the policy", m[1], m[3][:40], hash)
		}
	}
	if want := len(styles) + len(vendor) + 1; n != want {
		t.Errorf("%d scripts and styles, want %d", n, want)
	}
	if m := regexp.MustCompile(`(?i)(src|href)="[^d][^"]*"|@import|url\(`).FindString(text); m != "" {
		t.Errorf("it loads %s", m)
	}
	if strings.Contains(text, "<!-- ") || !strings.Contains(text, policy[:100]) {
		t.Error("a mark was not replaced, or the page has no policy of its own")
	}
}

// join removes imports and exports by patterns: one of another form would stay in the joined script.
func TestModulesCanBeJoined(t *testing.T) {
	text := join(modules)
	if m := regexp.MustCompile(`(?m)^(import|export)\b.*`).FindString(text); m != "" {
		t.Errorf("left: %s", m)
	}
	seen := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^(?:async )?(?:function|const|let|class) (\w+|\{[^}]*\})`)
	for _, m := range declared.FindAllStringSubmatch(text, -1) {
		for name := range strings.FieldsFuncSeq(m[1], func(r rune) bool { return strings.ContainsRune("{}, ", r) }) {
			if seen[name] {
				t.Errorf("%s is there twice", name)
			}
			seen[name] = true
		}
	}
	if len(seen) < 50 {
		t.Errorf("%d names", len(seen))
	}
	imported := regexp.MustCompile(`(?m)^import \{([^}]*)\} from "\./([a-z]+\.js)"`)
	for _, n := range modules {
		for _, m := range imported.FindAllStringSubmatch(file(n), -1) {
			from := file(m[2])
			for name := range strings.SplitSeq(m[1], ",") {
				name = regexp.QuoteMeta(strings.TrimSpace(name))
				if !regexp.MustCompile(`(?m)^export .*\b` + name + `\b`).MatchString(from) {
					t.Errorf("%s: %s has no %s", n, m[2], name)
				}
			}
		}
	}
	entries, err := web.ReadDir("web")
	if err != nil || len(entries) != len(modules)+3 { // plus index.html, page.css and vendor
		t.Errorf("%d files for %d modules: %v", len(entries), len(modules), err)
	}
}

// The modules use none of the functions in the pattern, which parse a text as HTML or code.
func TestModulesMakeNoHTMLOfText(t *testing.T) {
	if m := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacent|document\.write|dangerously|\beval\(|Function\(`).
		FindString(join(modules)); m != "" {
		t.Error(m)
	}
}

func TestVendoredFilesAreAsWritten(t *testing.T) {
	readme, err := os.ReadFile("web/vendor/README.md")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir("web/vendor")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range entries {
		name := e.Name()
		if !strings.HasSuffix(name, ".js") && !strings.HasSuffix(name, ".css") {
			continue
		}
		n++
		row := regexp.MustCompile("(?m)^\\| " + regexp.QuoteMeta(name) + " .*`([0-9a-f]{64})` \\|$").FindSubmatch(readme)
		if row == nil {
			t.Errorf("%s is not in the table", name)
			continue
		}
		if sum := fmt.Sprintf("%x", sha256.Sum256([]byte(file("vendor/"+name)))); sum != string(row[1]) {
			t.Errorf("%s has the sum %s", name, sum)
		}
	}
	if n != len(vendor)+1 {
		t.Errorf("%d files", n)
	}
}
