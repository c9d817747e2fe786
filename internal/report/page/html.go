package page

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

//go:embed web/*.html web/*.css web/*.js web/vendor/*.js web/vendor/*.css
var web embed.FS

// The files that assemble puts into index.html, each list in its order.
var (
	styles  = []string{"vendor/uPlot.min.css", "page.css"}
	vendor  = []string{"vendor/preact.umd.js", "vendor/hooks.umd.js", "vendor/htm.umd.js", "vendor/uPlot.iife.min.js"}
	modules = []string{"libraries.js", "units.js", "series.js", "model.js", "layout.js", "way.js", "picture.js",
		"flows.js", "memory.js", "charts.js", "events.js", "page.js"}
)

// Left out of the page: of modules the lines of imports and the word export, of the vendors' scripts the names of
// source maps.
var (
	importLine = regexp.MustCompile(`(?m)^import \{[^}]*\} from "\./[a-z]+\.js";\n`)
	exportWord = regexp.MustCompile(`(?m)^export (function|const|let|class) `)
	sourceMap  = regexp.MustCompile(`(?m)^//# sourceMappingURL=.*\n?`)
)

func file(name string) string {
	b, err := web.ReadFile("web/" + name)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func join(names []string) string {
	var b strings.Builder
	for _, n := range names {
		text := importLine.ReplaceAllString(file(n), "")
		b.WriteString(exportWord.ReplaceAllString(text, "$1 "))
	}
	return b.String()
}

type assembled struct {
	before, after string // the HTML around the script element with the data
	policy        string // Content-Security-Policy of a served page
}

var assemble = sync.OnceValue(func() assembled {
	var css, js strings.Builder
	var styleHashes, scriptHashes strings.Builder
	add := func(to, hashes *strings.Builder, open, text, end string) {
		sum := sha256.Sum256([]byte(text))
		fmt.Fprintf(hashes, " 'sha256-%s'", base64.StdEncoding.EncodeToString(sum[:]))
		to.WriteString(open + text + end + "\n")
	}
	for _, n := range styles {
		add(&css, &styleHashes, "<style>", file(n), "</style>")
	}
	for _, n := range vendor {
		add(&js, &scriptHashes, "<script>", sourceMap.ReplaceAllString(file(n), ""), "</script>")
	}
	add(&js, &scriptHashes, `<script type="module">`, join(modules), "</script>")
	policy := fmt.Sprintf("default-src 'none'; script-src%s; style-src%s; connect-src 'self'; img-src data:; "+
		"base-uri 'none'; form-action 'none'", &scriptHashes, &styleHashes)
	text := strings.NewReplacer("<!-- policy -->", `<meta http-equiv="Content-Security-Policy" content="`+policy+`">`,
		"<!-- styles -->", css.String(), "<!-- scripts -->", js.String()).Replace(file("index.html"))
	before, after, _ := strings.Cut(text, "<!-- data -->")
	return assembled{before, after, policy + "; frame-ancestors 'none'"}
})

// html returns the page with data, which is JSON. If data is nil, the page fetches its data from its server.
func html(data []byte) []byte {
	a := assemble()
	if data == nil {
		data = []byte("null")
	}
	return slices.Concat([]byte(a.before+`<script type="application/json" id="data">`), data, []byte("</script>"+a.after))
}
