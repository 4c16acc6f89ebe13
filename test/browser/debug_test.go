package e2e

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

var screenshots = flag.String("screenshots", "", "write pictures of the pages into this `folder`")

// look returns what shows a page as on a device, in a colour scheme.
func look(width, height int64, phone bool, scheme string) chromedp.Action {
	return chromedp.Tasks{
		chromedp.EmulateViewport(width, height, func(p *emulation.SetDeviceMetricsOverrideParams, _ *emulation.SetTouchEmulationEnabledParams) {
			p.Mobile = phone
		}),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
	}
}

// picture writes a picture of the page, if it is one of those that documents show and it is wanted.
func picture(name string) chromedp.Action {
	return chromedp.ActionFunc(func(ctx context.Context) error {
		wanted := []string{"debug-desk-light", "debug-phone-dark", "board-light", "board-dark", "quickstart"}
		if *screenshots == "" || !slices.Contains(wanted, name) {
			return nil
		}
		var shot []byte
		if err := chromedp.FullScreenshot(&shot, 100).Do(ctx); err != nil {
			return err
		}
		small, err := fewColours(shot)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(*screenshots, name+".png"), small, 0o600)
	})
}

// fewColours returns a picture in its 256 most frequent colours, which takes less than half of
// the bytes.
func fewColours(shot []byte) ([]byte, error) {
	whole, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		return nil, err
	}
	counts := make(map[color.Color]int)
	for y := range whole.Bounds().Dy() {
		for x := range whole.Bounds().Dx() {
			counts[whole.At(x, y)]++
		}
	}
	palette := slices.SortedFunc(maps.Keys(counts), func(a, b color.Color) int { return counts[b] - counts[a] })
	few := image.NewPaletted(whole.Bounds(), palette[:min(256, len(palette))])
	draw.Draw(few, few.Rect, whole, image.Point{}, draw.Src)
	var small bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, few)
	return small.Bytes(), err
}

// TestDebugPage on a phone and on a desk, light and dark: nothing is cut off, the colours are
// those of the scheme, and what is refused is shown.
func TestDebugPage(t *testing.T) {
	ctx := browser(t)
	url := start(t, "observability")
	run(ctx, t,
		chromedp.Navigate(url),
		// It loads itself again until there is something of everything.
		chromedp.ActionFunc(func(ctx context.Context) error {
			for done := false; !done; {
				if err := (chromedp.Tasks{
					chromedp.Navigate(url + "debug/headgate/"),
					chromedp.Evaluate(`document.querySelectorAll(".top").length >= 2 && document.getElementById("slots") !== null &&
						document.getElementById("now").textContent.includes("been refusing since")`, &done),
				}).Do(ctx); err != nil {
					return err
				}
			}
			return nil
		}),
	)
	for _, device := range []struct {
		name          string
		width, height int64
		phone         bool
	}{{"phone", 390, 844, true}, {"desk", 1280, 800, false}} {
		for scheme, page := range map[string]string{"light": "rgb(245, 246, 248)", "dark": "rgb(16, 20, 27)"} {
			var wide, cut int
			var broken []string
			var colour string
			run(ctx, t,
				look(device.width, device.height, device.phone, scheme),
				chromedp.Navigate(url+"debug/headgate/"),
				chromedp.Evaluate(fmt.Sprintf(`document.documentElement.scrollWidth - %d`, device.width), &wide),
				chromedp.Evaluate(`[...document.querySelectorAll("tbody th")].filter(h => {
					const name = document.createRange();
					name.selectNodeContents(h.firstChild);
					return name.getClientRects().length > 1;
				}).map(h => h.textContent)`, &broken),
				chromedp.Evaluate(`[...document.querySelectorAll("section")].filter(s => s.scrollWidth > s.clientWidth).length`, &cut),
				chromedp.Evaluate(`getComputedStyle(document.body).backgroundColor`, &colour),
				picture("debug-"+device.name+"-"+scheme),
			)
			if wide > 0 || cut > 0 || len(broken) > 0 {
				t.Errorf("%s: the page is %d px too wide, %d sections are cut off, and these names broken: %q", device.name, wide, cut, broken)
			}
			if colour != page {
				t.Errorf("%s, %s: the page is %s", device.name, scheme, colour)
			}
		}
	}
	// The links work, and the page loads itself again when it is told to.
	run(ctx, t,
		chromedp.Click(`a[href="?refresh=5"]`, chromedp.ByQuery),
		chromedp.WaitReady(`meta[http-equiv=refresh]`, chromedp.ByQuery),
		chromedp.WaitReady(`a[href="?"]`, chromedp.ByQuery),
		chromedp.Click(`a[href="metrics"]`, chromedp.ByQuery),
		chromedp.WaitReady(`//pre[contains(text(), "headgate_decisions_total{limiter=")]`, chromedp.BySearch),
	)
}
