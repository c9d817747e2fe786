package stat

import (
	"html/template"
	"net/http"
	"strings"
)

// pageText is the page for people, which the browser reloads every 2 s. It loads nothing else and has no
// script.
var pageText = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<meta http-equiv="refresh" content="2">
<title>vnic {{.Command}} {{.PID}}</title>
<style>body { font-family: sans-serif; margin: 1em } pre { overflow-x: auto }</style>
</head>
<body>
<h1>vnic {{.Command}}</h1>
<pre tabindex="0">{{.Table}}</pre>
<p>The same for programs: <a href="/metrics">/metrics</a>, for Prometheus. In a terminal:
<code>vnic stat {{.PID}}</code>.</p>
</body>
</html>
`))

const pagesAtOnce = 4

func page(s *Server) http.HandlerFunc {
	return atOnce(pagesAtOnce, "too many at once: try again", func(w http.ResponseWriter, _ *http.Request) {
		now := s.snapshot(shownFlows, askHolders)
		var table, all strings.Builder
		err := Table(&table, nil, now)
		if err == nil {
			err = pageText.Execute(&all, struct {
				*Snapshot
				Table string
			}{now, table.String()})
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		_, _ = w.Write([]byte(all.String()))
	})
}
