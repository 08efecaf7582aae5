from agent_runtime import Agent, tool


@tool(effect="read")
async def temperature(city: str) -> float:
    """Return the temperature in a city, in degrees Celsius."""
    return {"Oslo": 4.5, "Rome": 18.0}[city]


agent = Agent("weather", "Qwen/Qwen3-1.7B", instructions="Look temperatures up.", tools=[temperature])

if __name__ == "__main__":
    print(agent.run_sync("Is it warmer in Oslo or in Rome?").output)
