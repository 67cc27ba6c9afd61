"""Commands of operators who look after broken hardware."""
