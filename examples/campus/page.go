package main

import (
	"bytes"
	"fmt"
	"html/template"
	"net/http"
	"strings"

	"github.com/headgate/headgate/examples/internal/pages"
)

// A plot is the half of the picture for one run.
type plot struct {
	Title    string
	Students string // the outline of their bars, as an SVG path
	Abuser   float64
	Result   string
	Top      int
}

const (
	plotWidth  = 500.0
	plotHeight = 120.0
)

var pageHTML = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>headgate campus</title>
<style>
/* The picture has the colors of light pages. */
svg { display: block; width: 100%; height: auto; font-family: inherit; }
svg text { fill: var(--text); }
svg rect[fill="#eee"] { fill: var(--line); }
svg [fill="#2a7ab8"] { fill: var(--admitted); }
svg [fill="#c0392b"] { fill: var(--refused); }
</style>
</head>
<body>
<main>
<h1>headgate campus</h1>
<p>Students and an abuser behind one address. The limits of the second picture are also on
<code>curl -i http://{{.Host}}/api/hello</code>, where you are a newcomer.</p>
<section>
{{.Picture}}</section>
</main>
</body>
</html>
`))

var pictureSVG = template.Must(template.New("picture").Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 420"
font-family="sans-serif" font-size="13" role="img">
<title>Requests served, without and with session keys</title>
{{range .}}<g transform="translate(20 {{.Top}})">
<text y="-28" font-size="16" font-weight="bold">{{.Title}}</text>
<text y="-9">{{.Result}}</text>
<rect width="500" height="120" fill="#eee"/>
<path d="{{.Students}}" fill="#2a7ab8"/>
<rect x="515" width="85" height="120" fill="#eee"/>
<rect x="515" y="{{.Y}}" width="85" height="{{.Abuser}}" fill="#c0392b"/>
<text y="136" fill="#555">students, by how many of their requests were served</text>
<text x="515" y="136" fill="#555">the abuser</text>
</g>
{{end}}</svg>
`))

// Y returns where the abuser's bar begins.
func (p plot) Y() float64 { return plotHeight - p.Abuser }

// picture returns the results as an SVG.
func picture(served results) []byte {
	var svg bytes.Buffer
	err := pictureSVG.Execute(&svg, []plot{
		newPlot("One limit, on the address", served.without, served.abuserAsked, 55),
		newPlot("Limits on students, newcomers, new cookies and the address", served.with, served.abuserAsked, 265),
	})
	if err != nil {
		panic(err) // the template is wrong
	}
	return svg.Bytes()
}

// page serves the picture.
func page(svg []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var html strings.Builder
		pageHTML.Execute(&html, struct {
			Host    string
			Picture template.HTML
		}{r.Host, template.HTML(svg)})
		pages.Write(w, html.String())
	})
}

func newPlot(title string, r result, abuserAsked, top int) plot {
	var path strings.Builder
	fmt.Fprintf(&path, "M0 %g", plotHeight)
	for i, served := range r.students {
		x := plotWidth / float64(len(r.students))
		fmt.Fprintf(&path, "L%.6g %.6gH%.6g", x*float64(i), plotHeight*(1-float64(served)/asks), x*float64(i+1))
	}
	fmt.Fprintf(&path, "L%g %gZ", plotWidth, plotHeight)
	return plot{
		Title:    title,
		Students: path.String(),
		Abuser:   plotHeight * float64(r.abuserServed()) / float64(abuserAsked),
		Result: fmt.Sprintf("Served per student: %d to %d of %d, median %d. Served to the abuser: %d of %d.",
			r.min(), r.max(), asks, r.median(), r.abuserServed(), abuserAsked),
		Top: top,
	}
}
