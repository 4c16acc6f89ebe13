module github.com/headgate/headgate/contrib/echov5mw

go 1.25.0

require (
	github.com/headgate/headgate v0.0.0
	github.com/labstack/echo/v5 v5.3.1 // older ones are not tested
)

replace github.com/headgate/headgate => ../..
