package keyfuncs_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// The limits of ExampleSignedCookie, smaller: each student needs 2 requests a minute.
const (
	campusStudents  = 20
	campusStudent   = 3
	campusNewcomers = 5
	campusCookies   = 10
	campusAddress   = 2*campusStudents + campusCookies*campusStudent + campusStudent + campusNewcomers
)

// must is for what cannot fail.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// newCampus returns a function that sends a request from the campus, and one that returns the cookie
// of a student who has just signed in.
func newCampus(t *testing.T) (ask func(*http.Cookie) (ok bool, given *http.Cookie), signIn func() *http.Cookie) {
	cookie := must(keyfuncs.NewSignedCookie("__Host-client", 24*time.Hour, make([]byte, 32)))
	const probation = 10 * time.Minute
	student, address := cookie.OlderThan(probation), keyfuncs.RemoteAddr()
	store := new(core.MemoryStore)
	limiter := func(name string, n int64, per time.Duration) *core.Limiter {
		return core.NewLimiter(store, name, core.SlidingLog(n, per))
	}
	guard := must(nethttp.New(nethttp.Config{Rates: []nethttp.Rate{
		{Limiter: limiter("student", campusStudent, time.Minute), Key: student, Skip: keyfuncs.Lacks(student)},
		{Limiter: limiter("newcomers", campusNewcomers, time.Minute), Key: address, Skip: keyfuncs.Has(student)},
		{Limiter: limiter("cookies", campusCookies, 24*time.Hour), Key: address, Skip: keyfuncs.Has(cookie.Key)},
		{Limiter: limiter("address", campusAddress, time.Minute), Key: address},
	}}))
	handler := guard.Handler(cookie.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	ask = func(c *http.Cookie) (bool, *http.Cookie) {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
		if c != nil {
			r.AddCookie(c)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		for _, given := range w.Result().Cookies() {
			return w.Code == http.StatusOK, given
		}
		return w.Code == http.StatusOK, nil
	}
	return ask, func() *http.Cookie { return cookie.New(time.Now().Add(-probation)) }
}

// Over two days, an abuser takes every cookie that it can get, and now and then uses all that are
// valid. All students are served nevertheless.
func TestCampus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ask, signIn := newCampus(t)
		type collected struct {
			*http.Cookie
			until time.Time
		}
		var cookies []collected
		begin, most := time.Now(), 0
		for _, at := range []time.Duration{time.Minute, 20 * time.Minute, time.Hour, 23 * time.Hour, 24*time.Hour + 5*time.Minute, 36 * time.Hour, 49 * time.Hour} {
			abuser := 0
			for time.Since(begin) < at {
				time.Sleep(time.Minute)
				abuser = 0
				for ok, given := ask(nil); ok; ok, given = ask(nil) {
					abuser++
					cookies = append(cookies, collected{given, time.Now().Add(24 * time.Hour)})
				}
			}
			cookies = slices.DeleteFunc(cookies, func(c collected) bool { return !time.Now().Before(c.until) })
			for _, c := range append(slices.Clone(cookies), collected{Cookie: signIn()}) {
				for range campusStudent + 1 {
					if ok, _ := ask(c.Cookie); ok {
						abuser++
					}
				}
			}
			most = max(most, abuser)
			for range campusStudents {
				student := signIn()
				for range 2 {
					if ok, _ := ask(student); !ok {
						t.Errorf("after %v, a student is refused; the abuser had %d", at, abuser)
					}
				}
			}
		}
		if most < campusCookies*campusStudent {
			t.Errorf("the abuser used at most %d requests in a minute: it did not collect", most)
		}
	})
}
