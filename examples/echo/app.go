package main

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"

	"github.com/gorilla/websocket"
	"github.com/labstack/echo/v4"
)

// users and plans by token. Real tokens are long and random, so that they cannot be guessed.
var (
	users = map[string]string{"token-of-anna": "anna", "token-of-ben": "ben"}
	plans = map[string]string{"token-of-anna": "gold"}
)

// authenticate finds out who the user is. Other requests are charged to their address.
func authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		token, _ := strings.CutPrefix(c.Request().Header.Get("Authorization"), "Bearer ")
		c.Set("user", users[token])
		c.Set("plan", plans[token])
		return next(c)
	}
}

func hello(c echo.Context) error {
	user, _ := c.Get("user").(string)
	return c.String(http.StatusOK, fmt.Sprintf("hello, %s\n", cmp.Or(user, "stranger")))
}

func login(c echo.Context) error {
	if c.FormValue("password") != "open sesame" {
		return echo.ErrUnauthorized
	}
	return c.String(http.StatusOK, "come in\n")
}

// repeat sends back what the client sends.
func repeat(c echo.Context) error {
	conn, err := (&websocket.Upgrader{}).Upgrade(c.Response(), c.Request(), nil)
	if err != nil {
		return nil // Upgrade has answered
	}
	defer conn.Close()
	for {
		kind, message, err := conn.ReadMessage()
		if err != nil || conn.WriteMessage(kind, message) != nil {
			return nil
		}
	}
}

func index(c echo.Context) error {
	return c.String(http.StatusOK, fmt.Sprintf(`An API with Echo. In any minute, /api/hello admits 10 requests of each user, 100 of one with the
gold plan, and 10 of each address that has not signed in; /login 3 wrong passwords of an address
in any hour; /api/echo 3 open WebSockets of each user. Try

	curl -i http://%[1]s/api/hello
	curl -i -H 'Authorization: Bearer token-of-anna' http://%[1]s/api/hello
	curl -i -d 'password=open sesame' http://%[1]s/login
`, c.Request().Host))
}
